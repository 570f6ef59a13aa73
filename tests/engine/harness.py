"""Pool, cache and scheduler around the fake model, stepped with every check that can be made between two steps."""

import random
from collections import deque
from collections.abc import Callable, Sequence as Prompt
from dataclasses import dataclass, field
from typing import Any

from fake_model import FakeRunner, reference_tokens
from hypothesis import strategies as st

from batchpaged.engine.block_pool import BlockPool
from batchpaged.engine.memory_tiers import MemoryTiers
from batchpaged.engine.prefix_cache import BlockHash, PrefixCache, xxh3_128
from batchpaged.engine.sampling_params import SamplingParams
from batchpaged.engine.scheduler import Scheduler, SchedulerLimits
from batchpaged.engine.sequence import FinishReason, Sequence
from batchpaged.engine.step import Sampled, StepPlan
from batchpaged.tiers.costs import TierCosts

EOS = 0
SIZES = {  # of an engine, for property-based tests
    "block_size": st.sampled_from([1, 2, 4, 8]),
    "max_batch_tokens": st.sampled_from([1, 3, 8, 64]),
    "max_sequences": st.sampled_from([1, 2, 5, 100]),
}
VOCAB_SIZE = 20  # of the fake model: about one completion in a few ends by EOS before max_tokens


def narrow_hash(num_bits: int) -> BlockHash:
    """xxh3-128 cut down to its last bits: with few of them nearly every lookup meets another block's hash."""

    def block_hash(parent: bytes, tokens: bytes) -> bytes:
        value = int.from_bytes(xxh3_128(parent, tokens), "big") % 2**num_bits
        return value.to_bytes(16, "big")

    return block_hash


def free_moves() -> TierCosts:
    """Whatever can be stored is worth it."""
    return TierCosts(token=1.0, save=0.0, load=0.0, read=0.0)


@dataclass(frozen=True)
class Settings:
    num_blocks: int = 200
    block_size: int = 4
    max_batch_tokens: int = 16
    max_sequences: int = 8
    prefix_cache: bool = True
    num_hash_bits: int = 128
    steps_ahead: int = 0
    num_frames: int = 0  # of a host tier
    num_disk_slots: int = 0
    costs: TierCosts = field(default_factory=free_moves)


class Harness:
    """Sequences go in with `add`; every `step` asserts the invariants that hold between steps."""

    def __init__(self, settings: Settings) -> None:
        self.pool = BlockPool(settings.num_blocks, settings.block_size)
        block_hash = narrow_hash(settings.num_hash_bits)
        self.cache = PrefixCache(self.pool, b"root", block_hash) if settings.prefix_cache else None
        limits = SchedulerLimits(settings.max_batch_tokens, settings.max_sequences, max_model_len=10_000)
        has_tiers = settings.prefix_cache and settings.num_frames > 0
        frames = settings.num_frames, settings.num_disk_slots
        self.tiers = MemoryTiers(*frames, settings.block_size, settings.costs) if has_tiers else None
        self.scheduler = Scheduler(self.pool, self.cache, limits, finish_reason, self.tiers)
        self.runner = FakeRunner(settings.num_blocks, settings.block_size, VOCAB_SIZE, settings.max_batch_tokens)
        self.sequences: list[Sequence] = []
        self.num_steps = 0
        self.num_copies = 0
        self.steps_ahead = settings.steps_ahead
        self.started: deque[tuple[StepPlan, Callable[[], Sampled]]] = deque()
        self.on_plan: Callable[[StepPlan], None] = lambda plan: None

    def add(self, prompt: Prompt[int], max_tokens: int, prompt_logprobs: int | None = None, **more: Any) -> Sequence:
        """Raises RowError as the scheduler does. `more`: fields of the sequence."""
        params = SamplingParams(max_tokens=max_tokens, prompt_logprobs=prompt_logprobs)
        sequence = Sequence(len(self.sequences), list(prompt), len(prompt), params, seed=0, **more)
        self.scheduler.add(sequence)
        self.sequences.append(sequence)
        return sequence

    def step(self) -> list[Sequence]:
        """As the engine does; the results of `steps_ahead` steps stay unknown to the scheduler."""
        plan = self.scheduler.schedule()
        assert plan is not None or self.started, "work is left and nothing is planned"
        if plan is not None:
            self._start(plan)
        finished = []
        while len(self.started) > (0 if plan is None else self.steps_ahead):
            done, result = self.started.popleft()
            finished += self.scheduler.update(done, result())
            self.scheduler.check()
        return finished

    def _start(self, plan: StepPlan) -> None:
        assert not any(s.num_pending_tokens for s in self.scheduler.waiting), "preempted before its token was known"
        self.check_writes(plan)
        self.on_plan(plan)
        self.started.append((plan, self.runner.start(plan)))
        self.scheduler.start(plan)
        self.scheduler.check()
        self.num_steps += 1
        self.num_copies += len(plan.copies)

    def run(self) -> None:
        """To the end, which must come: every step computes a token, and few are computed often."""
        while self.scheduler.has_unfinished:
            self.step()
            assert self.num_steps < 100_000
        assert self.pool.num_available == self.pool.num_blocks
        if self.tiers is not None:
            assert self.tiers.host.num_used == self.tiers.disk.num_used == 0, "a block is stored that nobody needs"
            assert not self.cache._stored_below, "it is forgotten, but not wholly"

    def check_writes(self, plan: StepPlan) -> None:
        """What is written lies in blocks that one table holds, and that nobody can share as full blocks."""
        full = self.full_cached_blocks()
        targets = {slot // self.pool.block_size for slot in plan.slots} | {copy.target for copy in plan.copies}
        loaded = [load.target for load in plan.loads]
        assert len(set(loaded)) == len(loaded) and targets.isdisjoint(loaded), "two things go into one block"
        for block in targets:
            assert self.pool.reference_counts[block] == 1, "a shared block is written"
            assert block not in full, "a cached block is written"

    def full_cached_blocks(self) -> set[int]:
        entries = self.cache._by_block if self.cache else {}
        return {block for block, entry in entries.items() if entry.hash is not None}

    def check_outputs(self) -> None:
        """Every sequence generated what the fake model generates alone, and its accounts add up."""
        for s in self.sequences:
            prompt = s.token_ids[: s.num_prompt_tokens]
            assert s.generated_token_ids == reference_tokens(prompt, s.params.max_tokens, VOCAB_SIZE, EOS)
            assert s.num_cached_tokens + s.num_prefilled_tokens == s.num_prompt_tokens
            assert s.num_preemptions > 0 or s.num_recomputed_tokens == 0
        counts = self.scheduler.counts
        assert counts.cached == sum(s.num_cached_tokens for s in self.sequences)
        assert counts.prefilled == sum(s.num_prefilled_tokens for s in self.sequences)
        assert counts.recomputed == sum(s.num_recomputed_tokens for s in self.sequences)
        assert counts.generated == sum(s.num_generated_tokens for s in self.sequences)
        assert self.scheduler.num_preemptions == sum(s.num_preemptions for s in self.sequences)


def finish_reason(sequence: Sequence) -> FinishReason | None:
    if sequence.token_ids[-1] == EOS:
        return "stop"
    return "length" if sequence.num_generated_tokens >= sequence.params.max_tokens else None


def prefix_tree(rng: random.Random, num_prompts: int, alphabet: int = 3, longest: int = 20) -> list[list[int]]:
    """Random prompts that leave each other at any token; some are equal, some begin another."""
    documents = [[rng.randrange(alphabet) for _ in range(rng.randint(1, longest))] for _ in range(4)]
    prompts = []
    for _ in range(num_prompts):
        document = rng.choice(documents)
        kept = document[: rng.randint(0, len(document))]
        prompts.append(kept + [rng.randrange(alphabet) for _ in range(rng.randint(1, 6))])
    return prompts


def num_tree_nodes(prompts: list[list[int]]) -> int:
    """Unique tokens: each is one prefix of some prompt."""
    return len({tuple(prompt[:end]) for prompt in prompts for end in range(1, len(prompt) + 1)})
