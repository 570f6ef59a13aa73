"""Collects the tokens, slots and copies of one step."""

from collections.abc import Iterable

from batchpaged.engine.grammar import Grammar
from batchpaged.engine.memory_tiers import MemoryTiers
from batchpaged.engine.sequence import Sequence, TokenCounts
from batchpaged.engine.step import BlockCopy, PendingToken, PromptRequest, SampleRequest, SequenceStep, StepPlan


class StepBuilder:
    """Collects a step's tokens within its budget."""

    def __init__(
        self, block_size: int, budget: int, counts: TokenCounts, tiers: MemoryTiers | None = None
    ) -> None:
        self.budget = budget  # tokens that still fit into the step
        self._block_size = block_size
        self._counts = counts
        self._tiers = tiers
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
        is_last = end == sequence.num_tokens and not sequence.is_restored
        sample = _sample_request(sequence, sequence.seed, sequence.grammar) if is_last else None
        forks = _forks(sequence) if is_last else ()
        table = tuple(sequence.block_table[: -(-end // self._block_size)])
        prompt = self._prompt_request(sequence, start, end)
        self._sequences.append(
            SequenceStep(sequence.seq_id, num_tokens, end, table, sample, sequence.adapter, prompt, forks)
        )
        sequence.count_computed(start, end, self._counts)

    def _prompt_request(self, sequence: Sequence, start: int, end: int) -> PromptRequest | None:
        """For the tokens that follow [start, end) in the prompt, while its log-probabilities are not all there."""
        num_top, num_prompt = sequence.params.prompt_logprobs, sequence.num_prompt_tokens
        if num_top is None or sequence.prompt_logprobs is not None:
            return None
        first, last = start + 1, min(end + 1, num_prompt)
        slots = tuple(self._slots_of(sequence.block_table, first, last))
        wanted = tuple(self._slots_of(sequence.block_table, 1, num_prompt)) if end >= num_prompt else None
        return PromptRequest(num_top, tuple(sequence.token_ids[first:last]), slots, wanted)

    def _slots_of(self, block_table: list[int], start: int, end: int) -> Iterable[int]:
        size = self._block_size
        return (block_table[position // size] * size + position % size for position in range(start, end))

    def build(self) -> StepPlan | None:
        if not self._sequences:
            return None
        moves, loads = ((), ()) if self._tiers is None else self._tiers.take_moves()
        return StepPlan(
            tuple(self._token_ids),
            tuple(self._positions),
            tuple(self._slots),
            tuple(self._sequences),
            tuple(self._copies),
            tuple(self._pending),
            moves,
            loads,
        )


def _sample_request(sequence: Sequence, seed: int, grammar: Grammar | None) -> SampleRequest:
    history = tuple(sequence.token_ids) if sequence.params.needs_history else None
    return SampleRequest(sequence.params, seed, sequence.num_tokens, history, grammar, sequence.num_top)


def _forks(sequence: Sequence) -> tuple[tuple[int, SampleRequest], ...]:
    return tuple((fork.seq_id, _sample_request(sequence, fork.seed, fork.grammar)) for fork in sequence.forks)
