"""Prompts being prefilled now, so that no other sequence computes the same tokens beside them."""

from bisect import bisect_left, insort

from batchpaged.engine.sequence import Sequence


class InFlight:
    """The prefilling sequences, sorted by prompt: the longest common prefix is always with a neighbour."""

    def __init__(self) -> None:
        self._entries: list[tuple[bytes, int, Sequence]] = []

    def add(self, sequence: Sequence) -> None:
        insort(self._entries, _entry(sequence))

    def discard(self, sequence: Sequence) -> None:
        entry = _entry(sequence)
        at = bisect_left(self._entries, entry)
        if at < len(self._entries) and self._entries[at][1] == sequence.seq_id:
            self._entries.pop(at)

    def longest_overlap(self, sequence: Sequence) -> tuple[int, Sequence | None]:
        """(tokens shared, with which sequence): what waiting for that sequence would save at most."""
        at = bisect_left(self._entries, _entry(sequence))
        best: tuple[int, Sequence | None] = (0, None)
        for _, _, other in self._entries[max(at - 1, 0) : at + 1]:
            shared = sequence.num_common(other)
            if shared > best[0]:
                best = (shared, other)
        return best


def _entry(sequence: Sequence) -> tuple[bytes, int, Sequence]:
    return sequence.sort_key, sequence.seq_id, sequence  # seq_id is unique: sequences themselves are never compared
