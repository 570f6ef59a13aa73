"""The free queue: which cached block is evicted next."""

from collections import OrderedDict
from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

Entry = TypeVar("Entry", bound=Hashable)  # a block, or what lies in a place of a lower tier

_FEW = 64  # entries of the heap that are not worth tidying up


class FreeQueue(Generic[Entry]):
    """Cached blocks that nobody holds, in eviction order.

    Blocks without a known use are spare and go first, the one let go first in front. Then comes the block whose next
    use is farthest, as in Belady (1966), "A study of replacement algorithms for a virtual-storage computer"; of blocks
    with the same next use the one let go first. A sequence gives its blocks back last block first, so of one prompt's
    blocks the tail goes before the head, and a child never outlives its parent.
    """

    def __init__(self) -> None:
        self._spare: OrderedDict[Entry, None] = OrderedDict()
        self._needed: dict[Entry, tuple[int, int]] = {}  # block -> (-next use, number of its entry)
        self._heap: list[tuple[int, int, Entry]] = []  # (-next use, number, block); stale unless `_needed` agrees
        self._num_entries = 0

    def __len__(self) -> int:
        return len(self._spare) + len(self._needed)

    def __contains__(self, block: Entry) -> bool:
        return block in self._spare or block in self._needed

    @property
    def num_spare(self) -> int:
        return len(self._spare)

    def is_spare(self, block: Entry) -> bool:
        return block in self._spare

    def add(self, block: Entry, next_use: int | None) -> None:
        """`next_use`: a smaller number is a nearer use; None if none is known."""
        if next_use is None:
            self._spare[block] = None
            return
        entry = (-next_use, self._num_entries)
        self._num_entries += 1
        self._needed[block] = entry
        heappush(self._heap, (*entry, block))
        if len(self._heap) > 2 * len(self._needed) + _FEW:
            self._heap = [(*entry, block) for block, entry in self._needed.items()]
            heapify(self._heap)

    def remove(self, block: Entry) -> None:
        if block in self._spare:
            del self._spare[block]
        else:
            del self._needed[block]

    def first(self) -> Entry:
        """The block to be evicted next; the queue must not be empty."""
        if self._spare:
            return next(iter(self._spare))
        while self._is_stale(self._heap[0]):
            heappop(self._heap)
        return self._heap[0][2]

    def _is_stale(self, item: tuple[int, int, Entry]) -> bool:
        return self._needed.get(item[2]) != item[:2]

    def in_order(self) -> list[Entry]:
        """All blocks, the one evicted first in front."""
        return [*self._spare, *sorted(self._needed, key=self._needed.__getitem__)]
