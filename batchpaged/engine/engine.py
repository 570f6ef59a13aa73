"""The engine: sequences in, completions out, one step at a time."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import xxhash

from batchpaged.engine.block_pool import BlockPool
from batchpaged.engine.grammar import Grammar, Grammars
from batchpaged.engine.prefix_cache import PrefixCache
from batchpaged.engine.sampling_params import SamplingParams
from batchpaged.engine.scheduler import Scheduler, SchedulerLimits
from batchpaged.engine.sequence import FinishReason, Sequence
from batchpaged.engine.step import StepPlan
from batchpaged.engine.stop import StopCheck
from batchpaged.errors import RowError


Sampled = dict[int, int]  # token ids by seq_id


class Runner(Protocol):
    """Computes steps in the order in which they are started."""

    def start(self, plan: StepPlan) -> Callable[[], Sampled]:
        """Start a step. What is returned waits for it, and gives the token id of each sequence that asked for one.

        Raises MemoryError if memory does not suffice; a smaller step may do.
        """


@dataclass(frozen=True)
class EngineLimits:
    num_blocks: int  # of the block pool
    block_size: int  # slots per block
    max_batch_tokens: int
    max_sequences: int
    max_model_len: int
    prefix_cache: bool
    steps_ahead: int = 0  # 1: the next step is planned and started while one runs; see docs/gpu.md


@dataclass(frozen=True)
class Completion:
    """A finished sequence."""

    tag: Any  # what `add` was given
    text: str
    token_ids: tuple[int, ...]  # generated, including a stop token
    finish_reason: FinishReason
    num_prompt_tokens: int
    num_cached_tokens: int
    num_prefilled_tokens: int
    num_recomputed_tokens: int
    error: str | None = None  # why this is no completion: its grammar could not be followed to the end


class Engine:
    """Continuous batching over a paged KV cache. One thread owns an engine; nothing in it is locked."""

    def __init__(
        self,
        runner: Runner,
        limits: EngineLimits,
        stop_check: StopCheck,
        cache_root: bytes = b"",
        grammars: Grammars | None = None,
    ) -> None:
        """`grammars`: compiles what `add` is given; None: no sequence has any."""
        self.pool = BlockPool(limits.num_blocks, limits.block_size)
        cache = PrefixCache(self.pool, cache_root) if limits.prefix_cache else None
        scheduler_limits = SchedulerLimits(limits.max_batch_tokens, limits.max_sequences, limits.max_model_len)
        self.scheduler = Scheduler(self.pool, cache, scheduler_limits, stop_check.finish_reason)
        self.num_steps = 0
        self.busy_seconds = 0.0  # spent in steps
        self.num_out_of_memory = 0  # steps that were given up for want of memory
        self._runner = runner
        self._steps_ahead = limits.steps_ahead
        self._started: deque[tuple[StepPlan, Callable[[], Sampled]]] = deque()
        self._stop_check = stop_check
        self._grammars = grammars
        self._tags: dict[int, Any] = {}  # by seq_id, of unfinished sequences
        self._num_added = 0

    @property
    def has_unfinished(self) -> bool:
        return self.scheduler.has_unfinished

    @property
    def num_unfinished(self) -> int:
        return len(self._tags)

    def open_tags(self) -> list[Any]:
        """Of the sequences that run, or of the first that waits where none does."""
        scheduler = self.scheduler
        return [self._tags[s.seq_id] for s in (scheduler.running or list(scheduler.waiting)[:1])]

    def add(
        self,
        token_ids: list[int],
        params: SamplingParams,
        row_key: str,
        tag: Any,
        grammar: str | None = None,
        adapter: str | None = None,
    ) -> None:
        """Queue a prompt. `row_key` names the row for its random seed; `tag` comes back with the completion.

        `grammar`: what the completion must follow (see `batchpaged.structured`); `adapter`: identity of one of those that the
        model was given. Raises RowError if the prompt can never
        fit, or the grammar cannot be followed.
        """
        seed = row_seed(params.seed, row_key)
        state = None if grammar is None else self._start_grammar(grammar)
        sequence = Sequence(self._num_added, list(token_ids), len(token_ids), params, seed, adapter, state)
        self.scheduler.add(sequence)
        self._tags[sequence.seq_id] = tag
        self._num_added += 1

    def _start_grammar(self, text: str) -> Grammar:
        try:
            return self._grammars.start(text)
        except ValueError as error:  # its words may repeat those of the row
            raise RowError(f"its grammar, of {len(text)} characters, cannot be followed") from error

    def step(self) -> list[Completion]:
        """Schedule, run, update. Returns the completions that became known.

        With `steps_ahead` the update is that of an earlier step, so that this one runs while the next one is planned. Where
        memory runs out, a step's sequences are computed again in smaller ones. Raises MemoryError if that is no help.
        """
        begun = time.perf_counter()
        plan = self.scheduler.schedule()
        shortage = None if plan is None else self._start(plan)
        is_started = plan is not None and shortage is None
        finished: list[Sequence] = []
        while len(self._started) > (self._steps_ahead if is_started else 0):
            done, result = self._started.popleft()
            finished += self.scheduler.update(done, result())
        if shortage is not None:
            self._shrink(plan, shortage)
        self.busy_seconds += time.perf_counter() - begun
        return [self._complete(sequence) for sequence in finished]

    def _start(self, plan: StepPlan) -> MemoryError | None:
        """Start a step; the error where memory does not suffice, and then nothing has been started."""
        try:
            result = self._runner.start(plan)
        except MemoryError as error:
            return error
        self._started.append((plan, result))
        self.scheduler.start(plan)
        self.num_steps += 1
        return None

    def _shrink(self, plan: StepPlan, shortage: MemoryError) -> None:
        """The results of all steps before are known by now, so that no sequence has to be computed again in vain."""
        self.num_out_of_memory += 1
        if not self.scheduler.shrink(plan):
            raise shortage

    def _complete(self, sequence: Sequence) -> Completion:
        return Completion(
            tag=self._tags.pop(sequence.seq_id),
            text=self._stop_check.text(sequence),
            token_ids=tuple(sequence.generated_token_ids),
            finish_reason=sequence.finish_reason,
            num_prompt_tokens=sequence.num_prompt_tokens,
            num_cached_tokens=sequence.num_cached_tokens,
            num_prefilled_tokens=sequence.num_prefilled_tokens,
            num_recomputed_tokens=sequence.num_recomputed_tokens,
            error=sequence.grammar.error if sequence.grammar is not None else None,
        )


def row_seed(run_seed: int, row_key: str) -> int:
    """A row's own seed: the same wherever and whenever the row is computed."""
    return xxhash.xxh3_64_intdigest(row_key.encode("utf-8", "surrogatepass"), seed=run_seed & (2**64 - 1))


def run_to_end(engine: Engine, on_completion: Callable[[Completion], None]) -> None:
    """Step until nothing is left; checks that the pool is whole at the end."""
    while engine.has_unfinished:
        for completion in engine.step():
            on_completion(completion)
    engine.scheduler.check()
