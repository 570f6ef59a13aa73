"""A deterministic stand-in for the model that checks what the scheduler hands it.

Its KV cache holds, per slot, the token id and position written there. Every context is read back through its block
table and must be exactly the sequence's own tokens; the next token is a hash of that context. So a wrong share, a slot
written twice or read before it was computed changes the output or raises.
"""

import xxhash

from batchpaged.engine.step import StepPlan


def next_token(context: list[int], vocab_size: int) -> int:
    """The fake model itself: a function of all tokens so far."""
    return xxhash.xxh3_64_intdigest(repr(context).encode()) % vocab_size


def reference_tokens(prompt: list[int], num_tokens: int, vocab_size: int, eos: int | None = None) -> list[int]:
    """What the fake model generates with no cache, no batch and no scheduler."""
    context = list(prompt)
    for _ in range(num_tokens):
        context.append(next_token(context, vocab_size))
        if context[-1] == eos:
            break
    return context[len(prompt) :]


class FakeRunner:
    def __init__(self, num_blocks: int, block_size: int, vocab_size: int = 50, max_batch_tokens: int = 10**9) -> None:
        self.block_size = block_size
        self.vocab_size = vocab_size
        self.max_batch_tokens = max_batch_tokens
        self.slots: list[tuple[int, int] | None] = [None] * (num_blocks * block_size)
        self.num_computed_tokens = 0
        self.writes: list[int] = []  # slots written in the last step

    def execute(self, plan: StepPlan) -> dict[int, int]:
        assert 0 < plan.num_tokens <= self.max_batch_tokens
        self._copy(plan)
        assert len(set(plan.slots)) == len(plan.slots), "a slot is written twice in one step"
        for token, position, slot in zip(plan.token_ids, plan.positions, plan.slots, strict=True):
            self.slots[slot] = (token, position)
        self.writes = list(plan.slots)
        self.num_computed_tokens += plan.num_tokens
        return dict(self._sample(plan))

    def _copy(self, plan: StepPlan) -> None:
        size = self.block_size
        read = [self.slots[c.source * size : c.source * size + c.num_slots] for c in plan.copies]
        for copy, values in zip(plan.copies, read, strict=True):
            assert None not in values, "a copy reads slots that were never computed"
            self.slots[copy.target * size : copy.target * size + copy.num_slots] = values

    def _sample(self, plan: StepPlan):
        end = 0
        for step in plan.sequences:
            end += step.query_length
            new_tokens = list(plan.token_ids[end - step.query_length : end])
            context = self._read(step)
            assert context[-step.query_length :] == new_tokens
            if step.sample is not None:
                yield step.seq_id, next_token(context, self.vocab_size)

    def _read(self, step) -> list[int]:
        size = self.block_size
        assert len(step.block_table) == -(-step.context_length // size)
        context = []
        for position in range(step.context_length):
            entry = self.slots[step.block_table[position // size] * size + position % size]
            assert entry is not None and entry[1] == position, "a context reads a slot of another position"
            context.append(entry[0])
        return context
