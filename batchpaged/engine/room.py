"""What admission has to leave free."""

from batchpaged.engine.completion_lengths import CompletionLengths
from batchpaged.engine.sequence import Sequence


class Room:
    """Blocks kept for the sequences that run, and for those passed over in the queue."""

    def __init__(self, block_size: int, lengths: CompletionLengths) -> None:
        self.num_expected = 0  # blocks that all of them together are expected to take yet
        self.num_most = 0  # that one of them can take at most: it must be able to go on when all others are preempted
        self._block_size = block_size
        self._lengths = lengths

    @property
    def num_blocks(self) -> int:
        return max(self.num_expected, self.num_most)

    def keep_growth(self, sequence: Sequence) -> None:
        """For what a sequence needs beyond its known tokens, once these have their blocks."""
        self._keep(sequence, -(-sequence.num_tokens // self._block_size))

    def keep_all(self, sequence: Sequence) -> None:
        """For one that waits for a prefix: all that it does not share with the sequence that computes it."""
        self._keep(sequence, sequence.num_awaited_tokens // self._block_size)

    def _keep(self, sequence: Sequence, num_there: int) -> None:
        size, max_tokens = self._block_size, sequence.params.max_tokens
        num_expected = max(sequence.num_prompt_tokens + self._lengths.expected(max_tokens), sequence.num_tokens)
        num_most = sequence.num_prompt_tokens + max_tokens
        self.num_expected += sequence.num_places * (-(-min(num_expected, num_most) // size) - num_there)
        num_beams = sequence.params.beam_width or 1  # they need their blocks at the same time
        self.num_most = max(self.num_most, num_beams * (-(-num_most // size) - num_there))
