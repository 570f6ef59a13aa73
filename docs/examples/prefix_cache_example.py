"""The block pool, the prefix cache and the scheduler at work on four tiny prompts, step by step.

Prints what docs/prefix-cache.md explains; a test keeps the two equal. No model runs: the next token is a sum over the
tokens before it, so equal prompts get equal completions, as with greedy sampling.

    python docs/examples/prefix_cache_example.py
"""

from collections.abc import Iterable, Iterator

from batchpaged.engine.block_pool import BlockPool
from batchpaged.engine.prefix_cache import PrefixCache
from batchpaged.engine.sampling_params import SamplingParams
from batchpaged.engine.scheduler import Scheduler, SchedulerLimits
from batchpaged.engine.sequence import Sequence, Status
from batchpaged.engine.step import Sampled, StepPlan

BLOCK_SIZE = 4
NUM_BLOCKS = 10
LIMITS = SchedulerLimits(max_batch_tokens=12, max_sequences=4, max_model_len=32)
PARAMS = SamplingParams(max_tokens=5)
DOCUMENT = [10, 11, 12, 13, 14, 15, 16, 17]
PROMPTS = {
    "A": [*DOCUMENT, 20, 21],  # a question about the document
    "B": [*DOCUMENT, 20, 21],  # the same question again
    "C": [*DOCUMENT[:6], 30, 31, 32],  # leaves the document inside its second block
    "D": [50, 51, 52, 53, 54, 55, 56, 57, 58],  # another document
}


def next_token(token_ids: list[int]) -> int:
    return 90 + sum(token_ids) % 10


def finish_reason(sequence: Sequence) -> str | None:
    return "length" if sequence.num_generated_tokens >= sequence.params.max_tokens else None


class Example:
    """A real scheduler over a real pool and cache; this class plays the model and tells what happens."""

    def __init__(self) -> None:
        self.pool = BlockPool(NUM_BLOCKS, BLOCK_SIZE)
        self.scheduler = Scheduler(self.pool, PrefixCache(self.pool, root=b""), LIMITS, finish_reason)
        self.names = dict(enumerate(PROMPTS))  # by seq_id
        self.sequences = [Sequence(i, list(ids), len(ids), PARAMS, 0) for i, ids in enumerate(PROMPTS.values())]
        self.slots: dict[int, list[int]] = {}  # block -> the tokens whose keys and values its slots hold
        self.evicted: list[int] = []
        self._watch_evictions()
        for sequence in self.sequences:
            self.scheduler.add(sequence)

    def _watch_evictions(self) -> None:
        forget = self.pool.on_evict

        def on_evict(block: int) -> None:
            self.evicted.append(block)
            forget(block)

        self.pool.on_evict = on_evict

    def lines(self) -> Iterator[str]:
        for sequence in self.sequences:
            yield f"{self.names[sequence.seq_id]}  {words(sequence.token_ids)}"
        number = 0
        while self.scheduler.has_unfinished:
            number += 1
            yield f"\nstep {number}"
            yield from (f"  {line}" for line in self.step())
        self.scheduler.check()
        yield "\nend"
        yield from (f"  {self.names[sequence.seq_id]}  {accounting(sequence)}" for sequence in self.sequences)

    def step(self) -> Iterator[str]:
        """Schedule, run, update: what Engine.step does."""
        self.evicted.clear()
        before = [(sequence.status, sequence.num_preemptions) for sequence in self.sequences]
        plan = self.scheduler.schedule()
        yield from self.decisions(before, plan)
        yield from self.work(plan)
        sampled = self.execute(plan)
        tables = [list(sequence.block_table) for sequence in self.sequences]
        self.scheduler.start(plan)
        finished = self.scheduler.update(plan, Sampled(sampled))
        yield from self.exchanges(tables)
        for sequence in finished:
            yield f"{self.names[sequence.seq_id]} is finished: {words(sequence.generated_token_ids)}"
        yield from self.pool_state()

    def execute(self, plan: StepPlan) -> dict[int, int]:
        """As a model runner does: all copies, then the step's slots, then a token for each sequence that asks."""
        copied = [self.slots[copy.source][: copy.num_slots] for copy in plan.copies]
        for copy, held in zip(plan.copies, copied, strict=True):
            self.slots[copy.target] = held
        for token, slot in zip(plan.token_ids, plan.slots, strict=True):
            block, offset = divmod(slot, BLOCK_SIZE)
            self.slots[block] = [*self.slots.get(block, [])[:offset], token]
        asking = [step.seq_id for step in plan.sequences if step.sample is not None]
        return {seq_id: next_token(self.sequences[seq_id].token_ids) for seq_id in asking}

    # --- what happened, in words ---

    def decisions(self, before: list[tuple[Status, int]], plan: StepPlan) -> Iterator[str]:
        for sequence, (status, num_preemptions) in zip(self.sequences, before, strict=True):
            name = self.names[sequence.seq_id]
            if sequence.num_preemptions > num_preemptions:
                yield f"{name} is preempted and gives its blocks back"
            if status is Status.WAITING and sequence.status is Status.RUNNING:
                yield f"{name} is admitted: {self.hits(sequence, plan)}"
            if sequence.waits_for is not None:
                yield f"{name} is deferred: {self.names[sequence.waits_for.seq_id]} is prefilling tokens that it needs"
        if self.evicted:
            yield f"evicted: {blocks(self.evicted)}"

    def hits(self, sequence: Sequence, plan: StepPlan) -> str:
        shared = sequence.block_table[: sequence.num_cached_blocks]
        parts = [f"shares {blocks(shared)}"] if shared else []
        for copy in plan.copies:
            if copy.target in sequence.block_table:
                held = self.slots[copy.source][: copy.num_slots]
                parts.append(f"copies [{words(held)}] from block {copy.source} to block {copy.target}")
        return ", ".join(parts) or "no hit"

    def work(self, plan: StepPlan) -> Iterator[str]:
        end = 0
        for step in plan.sequences:
            start, end = end, end + step.query_length
            first, last = plan.positions[start], plan.positions[end - 1]
            place = f"position {first}" if first == last else f"positions {first} to {last}"
            table = list(self.sequences[step.seq_id].block_table)
            yield f"{self.names[step.seq_id]} computes {words(plan.token_ids[start:end])}  ({place}, blocks {table})"

    def exchanges(self, before: list[list[int]]) -> Iterator[str]:
        for sequence, table in zip(self.sequences, before, strict=True):
            for old, new in zip(table, sequence.block_table, strict=False):  # a finished one has none left
                if old != new:
                    yield f"{self.names[sequence.seq_id]} exchanges block {old} for block {new}: the same tokens"

    def pool_state(self) -> Iterator[str]:
        counts = [f"{block}:{count}" for block, count in enumerate(self.pool.reference_counts) if count]
        yield f"reference counts  {' '.join(counts) or 'all zero'}"
        queue = self.pool.eviction_order()
        spare = [f"{block}[{words(self.slots[block])}]" for block in queue if self.pool.is_spare(block)]
        needed = [f"{block}[{words(self.slots[block])}]" for block in queue if not self.pool.is_spare(block)]
        yield f"free queue        {' '.join([*spare, *['|'][: len(needed)], *needed]) or 'empty'}"
        # The pool has no use for listing these in public, so this looks inside.
        yield f"free              {words(reversed(self.pool._free)) or 'none'}"


def words(ids: Iterable[int]) -> str:
    return " ".join(map(str, ids))


def blocks(ids: list[int]) -> str:
    return f"block{'s' if len(ids) > 1 else ''} {', '.join(map(str, ids))}"


def accounting(s: Sequence) -> str:
    return (
        f"{s.num_prompt_tokens} prompt tokens = {s.num_prefilled_tokens} prefilled + {s.num_cached_tokens} cached, "
        f"{s.num_recomputed_tokens} recomputed"
    )


if __name__ == "__main__":
    print("\n".join(Example().lines()))
