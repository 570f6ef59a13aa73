"""The engine: sequences in, completions out, one step at a time."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import xxhash

from batchpaged.engine.block_pool import BlockPool
from batchpaged.engine.grammar import Grammar, Grammars
from batchpaged.engine.memory_tiers import MemoryTiers
from batchpaged.engine.prefix_cache import PrefixCache
from batchpaged.engine.sampling_params import SamplingParams
from batchpaged.engine.scheduler import Scheduler, SchedulerLimits
from batchpaged.engine.sequence import BeamGroup, FinishReason, Fork, Sequence
from batchpaged.engine.step import Sampled, StepPlan, TokenLogprobs, join_logprobs
from batchpaged.engine.stop import StopCheck
from batchpaged.errors import RowError
from batchpaged.tiers.costs import TierCosts
from batchpaged.tiers.disk import LostBlockError


class Runner(Protocol):
    """Computes steps in the order in which they are started."""

    def start(self, plan: StepPlan) -> Callable[[], Sampled]:
        """Start a step. What is returned waits for it, and gives what each sequence asked for.

        Raises MemoryError if memory does not suffice; a smaller step may do. Raises LostBlockError if a block cannot be
        loaded; the step may have begun to move others.
        """

    def close(self) -> None:
        """No step follows: give back what does not go with its memory."""


@dataclass(frozen=True)
class EngineLimits:
    num_blocks: int  # of the block pool
    block_size: int  # slots per block
    max_batch_tokens: int
    max_sequences: int
    max_model_len: int
    prefix_cache: bool
    steps_ahead: int = 0  # 1: the next step is planned and started while one runs; see docs/gpu.md
    num_frames: int = 0  # blocks of the host tier
    num_disk_slots: int = 0  # blocks of the disk tier


@dataclass(frozen=True)
class Output:
    """One of a row's completions."""

    text: str
    token_ids: tuple[int, ...]  # generated, including a stop token
    finish_reason: FinishReason
    logprobs: TokenLogprobs | None = None  # n = generated tokens, where they are wanted
    score: float | None = None  # by which it was chosen, where some were: see SamplingParams.best_of and beam_width


@dataclass(frozen=True)
class Completion:
    """A finished row, its outputs in the order of their scores where they have any."""

    tag: Any  # what `add` was given
    outputs: tuple[Output, ...]
    num_prompt_tokens: int
    num_cached_tokens: int
    num_prefilled_tokens: int
    num_recomputed_tokens: int
    num_earlier_tokens: int = 0  # of the cached ones: in blocks that an earlier stage computed
    prompt_logprobs: TokenLogprobs | None = None  # n = prompt tokens - 1, where they are wanted
    error: str | None = None  # why this is no completion: its grammar could not be followed to the end

    @property
    def text(self) -> str:
        """Of the first output; the next two as well."""
        return self.outputs[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.outputs[0].token_ids

    @property
    def finish_reason(self) -> FinishReason:
        return self.outputs[0].finish_reason

    @property
    def num_generated_tokens(self) -> int:
        """Of all outputs."""
        return sum(len(output.token_ids) for output in self.outputs)


@dataclass
class _OpenRow:
    tag: Any
    num_open: int  # sequences that have not finished
    finished: list[Sequence] = field(default_factory=list)


class Engine:
    """Continuous batching over a paged KV cache. One thread owns an engine; nothing in it is locked."""

    def __init__(
        self,
        runner: Runner,
        limits: EngineLimits,
        stop_check: StopCheck,
        cache_root: bytes = b"",
        grammars: Grammars | None = None,
        costs: TierCosts | None = None,
    ) -> None:
        """`grammars`: compiles what `add` is given; None: no sequence has any. `costs`: of lower tiers, where there are any."""
        self.pool = BlockPool(limits.num_blocks, limits.block_size)
        cache = PrefixCache(self.pool, cache_root) if limits.prefix_cache else None
        scheduler_limits = SchedulerLimits(limits.max_batch_tokens, limits.max_sequences, limits.max_model_len)
        sizes = limits.num_frames, limits.num_disk_slots, limits.block_size
        tiers = MemoryTiers(*sizes, costs) if limits.num_frames and cache is not None else None
        self.scheduler = Scheduler(self.pool, cache, scheduler_limits, stop_check.finish_reason, tiers)
        self.num_steps = 0
        self.busy_seconds = 0.0  # spent in steps
        self.num_out_of_memory = 0  # steps that were given up for want of memory
        self.most_blocks = 0  # that were referenced during a step, since the stage began
        self._runner = runner
        self._steps_ahead = limits.steps_ahead
        self._started: deque[tuple[StepPlan, Callable[[], Sampled]]] = deque()
        self._stop_check = stop_check
        self._grammars = grammars
        self._rows: dict[int, _OpenRow] = {}  # by the seq_id of the row's first sequence
        self._num_added = 0

    @property
    def has_unfinished(self) -> bool:
        return self.scheduler.has_unfinished

    def close(self) -> None:
        """After the last step, or where there will be no more: what lies on disk is deleted."""
        self._runner.close()

    @property
    def num_unfinished(self) -> int:
        return len(self._rows)

    def begin_stage(self) -> None:
        """What is computed from now on is another stage's. Nothing is open."""
        self.most_blocks = 0
        if self.scheduler.cache is not None:
            self.scheduler.cache.stage += 1

    def open_tags(self) -> list[Any]:
        """Of the rows whose sequences run, or of the first that waits where none does."""
        scheduler = self.scheduler
        rows = dict.fromkeys(s.row for s in (scheduler.running or list(scheduler.waiting)[:1]))
        return [self._rows[row].tag for row in rows]

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
        model was given. Raises RowError if the prompt can never fit, or the grammar cannot be followed.
        """
        first = self._num_added
        seeds = sequence_seeds(row_seed(params.seed, row_key), params.num_sequences)
        states = [None if grammar is None else self._start_grammar(grammar) for _ in seeds]
        sequence = Sequence(first, list(token_ids), len(token_ids), params, seeds[0], adapter, states[0])
        sequence.num_top = params.logprobs
        if params.beam_width is not None:
            self._make_beams(sequence)
        else:
            sequence.forks = tuple(Fork(first + i, seeds[i], states[i]) for i in range(1, len(seeds)))
            if params.best_of is not None and params.logprobs is None:
                sequence.num_top = 0
        self.scheduler.add(sequence)
        self._rows[first] = _OpenRow(tag, params.n if params.beam_width is not None else params.num_sequences)
        self._num_added += params.num_sequences

    def _make_beams(self, sequence: Sequence) -> None:
        """As many continuations are looked at that `beam_width` of them do not end, whatever ends."""
        params = sequence.params
        num_candidates = max(2, 1 + self._stop_check.num_end_tokens(params)) * params.beam_width
        sequence.num_top = max(num_candidates, params.logprobs or 0)
        sequence.beams = BeamGroup([sequence], num_candidates)

    def _start_grammar(self, text: str) -> Grammar:
        try:
            return self._grammars.start(text)
        except ValueError as error:  # its words may repeat those of the row
            raise RowError(f"its grammar, of {len(text)} characters, cannot be followed") from error

    def step(self) -> list[Completion]:
        """Schedule, run, update. Returns the completions that became known.

        With `steps_ahead` the update is that of an earlier step, so that this one runs while the next one is planned. Where
        memory runs out, a step's sequences are computed again in smaller ones, and where a stored block is lost, without what
        is stored. Raises MemoryError if that is no help.
        """
        begun = time.perf_counter()
        plan = self.scheduler.schedule()
        self.most_blocks = max(self.most_blocks, self.pool.num_referenced)
        failure = None if plan is None else self._start(plan)
        is_started = plan is not None and failure is None
        finished: list[Sequence] = []
        while len(self._started) > (self._steps_ahead if is_started else 0):
            done, result = self._started.popleft()
            finished += self.scheduler.update(done, result())
        if isinstance(failure, MemoryError):
            self._shrink(plan, failure)
        elif failure is not None:
            self.scheduler.tiers.counts.num_lost += 1
            self.scheduler.give_up()
        self.busy_seconds += time.perf_counter() - begun
        return [completion for sequence in finished if (completion := self._finish(sequence)) is not None]

    def _start(self, plan: StepPlan) -> MemoryError | LostBlockError | None:
        """Start a step; the error where memory does not suffice or a block is lost, and then nothing has been started."""
        try:
            result = self._runner.start(plan)
        except (MemoryError, LostBlockError) as error:
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

    def _finish(self, sequence: Sequence) -> Completion | None:
        """The row's completion, once its last sequence has finished."""
        row = self._rows[sequence.row]
        row.finished.append(sequence)
        row.num_open -= 1
        return None if row.num_open else self._complete(self._rows.pop(sequence.row))

    def _complete(self, row: _OpenRow) -> Completion:
        sequences = sorted(row.finished, key=lambda sequence: sequence.seq_id)
        first = sequences[0]
        return Completion(
            tag=row.tag,
            outputs=self._outputs(sequences),
            num_prompt_tokens=first.num_prompt_tokens,
            num_cached_tokens=first.num_cached_tokens,
            num_prefilled_tokens=first.num_prefilled_tokens,
            num_recomputed_tokens=sum(sequence.num_recomputed_tokens for sequence in sequences),
            num_earlier_tokens=first.num_earlier_tokens,
            prompt_logprobs=first.prompt_logprobs,
            error=next((s.grammar.error for s in sequences if s.grammar is not None and s.grammar.error), None),
        )

    def _outputs(self, sequences: list[Sequence]) -> tuple[Output, ...]:
        params = sequences[0].params
        outputs = [self._output(sequence) for sequence in sequences]
        if params.best_of is not None:
            outputs = sorted(outputs, key=lambda output: -output.score)[: params.n]
        return tuple(outputs) if len(outputs) == params.n else (outputs[0],) * params.n  # greedy: one stands for all

    def _output(self, sequence: Sequence) -> Output:
        params = sequence.params
        logprobs = join_logprobs(sequence.logprobs) if sequence.logprobs else None
        is_mean = params.best_of is not None and logprobs is not None
        return Output(
            text=self._stop_check.text(sequence),
            token_ids=tuple(sequence.generated_token_ids),
            finish_reason=sequence.finish_reason,
            logprobs=None if params.logprobs is None else logprobs,
            score=float(np.mean(logprobs.logprobs, dtype=np.float64)) if is_mean else sequence.score,
        )


def row_seed(run_seed: int, row_key: str) -> int:
    """A row's own seed: the same wherever and whenever the row is computed."""
    return xxhash.xxh3_64_intdigest(row_key.encode("utf-8", "surrogatepass"), seed=run_seed & (2**64 - 1))


def sequence_seeds(seed: int, num_sequences: int) -> list[int]:
    """Of the sequences of a row, which the first one shares with a row that has no others."""
    content = seed.to_bytes(8, "little")
    return [seed, *(xxhash.xxh3_64_intdigest(content, seed=i) for i in range(1, num_sequences))]


def run_to_end(engine: Engine, on_completion: Callable[[Completion], None]) -> None:
    """Step until nothing is left; checks that the pool is whole at the end."""
    while engine.has_unfinished:
        for completion in engine.step():
            on_completion(completion)
    engine.scheduler.check()
