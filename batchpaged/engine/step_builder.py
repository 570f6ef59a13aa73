"""Collects the tokens, slots and copies of one step."""

from collections.abc import Iterable

from batchpaged.engine.sequence import Sequence, TokenCounts
from batchpaged.engine.step import BlockCopy, PendingToken, SampleRequest, SequenceStep, StepPlan


class StepBuilder:
    """Collects a step's tokens within its budget."""

    def __init__(self, block_size: int, budget: int, counts: TokenCounts) -> None:
        self.budget = budget  # tokens that still fit into the step
        self._block_size = block_size
        self._counts = counts
        self._token_ids: list[int | None] = []
        self._positions: list[int] = []
        self._slots: list[int] = []
        self._sequences: list[SequenceStep] = []
        self._copies: list[BlockCopy] = []
        self._pending: list[PendingToken] = []

    def copy(self, copy: BlockCopy) -> None:
        self._copies.append(copy)

    def add(self, sequence: Sequence, num_tokens: int) -> None:
        """Take the sequence's next `num_tokens` uncomputed tokens; its block table must cover them."""
        start = sequence.num_computed_tokens
        end = start + num_tokens
        self.budget -= num_tokens
        self._token_ids += sequence.token_ids[start:end]
        if end > len(sequence.token_ids):
            self._pending.append(PendingToken(len(self._token_ids), sequence.seq_id))
            self._token_ids.append(None)
        self._positions += range(start, end)
        self._slots += self._slots_of(sequence.block_table, start, end)
        sample = _sample_request(sequence) if end == sequence.num_tokens else None
        table = tuple(sequence.block_table[: -(-end // self._block_size)])
        self._sequences.append(SequenceStep(sequence.seq_id, num_tokens, end, table, sample, sequence.adapter))
        sequence.count_computed(start, end, self._counts)

    def _slots_of(self, block_table: list[int], start: int, end: int) -> Iterable[int]:
        size = self._block_size
        return (block_table[position // size] * size + position % size for position in range(start, end))

    def build(self) -> StepPlan | None:
        if not self._sequences:
            return None
        return StepPlan(
            tuple(self._token_ids),
            tuple(self._positions),
            tuple(self._slots),
            tuple(self._sequences),
            tuple(self._copies),
            tuple(self._pending),
        )


def _sample_request(sequence: Sequence) -> SampleRequest:
    history = tuple(sequence.token_ids) if sequence.params.needs_history else None
    return SampleRequest(sequence.params, sequence.seed, sequence.num_tokens, history, sequence.grammar)
