"""The block pool: owner of all blocks, their reference counts and the free queue."""

from collections import OrderedDict
from collections.abc import Callable, Iterable


class BlockPool:
    """`num_blocks` blocks of `block_size` slots each.

    A block is in exactly one state: free (holds nothing), cached and unreferenced (in the free queue,
    findable, evictable) or referenced by at least one block table. The pool knows ids and counts; what a
    cached block holds is the prefix cache's business, which is told of evictions through `on_evict`.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.reference_counts = [0] * num_blocks
        self.on_evict: Callable[[int], None] = lambda block: None
        # A stack: blocks given back are used again first, so a run that needs few blocks touches little memory.
        self._free = list(range(num_blocks - 1, -1, -1))
        # Front: evicted first. A sequence gives its blocks back last block first, so that of one prompt's blocks
        # the tail, which fewest others share, goes before the head, and a child never outlives its parent.
        self._free_queue: OrderedDict[int, None] = OrderedDict()
        self._cached: set[int] = set()

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` can hand out: free, or cached and unreferenced."""
        return len(self._free) + len(self._free_queue)

    @property
    def num_referenced(self) -> int:
        return self.num_blocks - self.num_available

    def is_cached(self, block: int) -> bool:
        return block in self._cached

    def is_referenced(self, block: int) -> bool:
        return self.reference_counts[block] > 0

    def allocate(self) -> int:
        """Take one block, reference count 1. Evicts the front of the free queue when no block is free.

        The caller must have checked `num_available`, and gives the block back with `release`.
        """
        block = self._free.pop() if self._free else self._evict()
        self.reference_counts[block] = 1
        return block

    def _evict(self) -> int:
        block, _ = self._free_queue.popitem(last=False)
        self._cached.discard(block)
        self.on_evict(block)
        return block

    def acquire(self, block: int) -> None:
        """Add a reference to a cached or referenced block; takes it out of the free queue if it was there."""
        if self.reference_counts[block] == 0:
            del self._free_queue[block]
        self.reference_counts[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Drop one reference of each block, in the given order: those given first are evicted first."""
        for block in blocks:
            self.reference_counts[block] -= 1
            if self.reference_counts[block] == 0:
                self._retire(block)

    def _retire(self, block: int) -> None:
        if block in self._cached:
            self._free_queue[block] = None
        else:
            self._free.append(block)

    def mark_cached(self, block: int) -> None:
        """The prefix cache can find this (referenced) block from now on."""
        self._cached.add(block)

    def unmark_cached(self, block: int) -> None:
        """The prefix cache has forgotten this (referenced) block."""
        self._cached.discard(block)

    def check(self, block_tables: Iterable[list[int]]) -> None:
        """Raise AssertionError unless every block is in one state and counts equal the tables that hold it."""
        expected = [0] * self.num_blocks
        for table in block_tables:
            for block in table:
                expected[block] += 1
        if expected != self.reference_counts:
            raise AssertionError("reference counts differ from the block tables")
        states = sorted(self._free + list(self._free_queue) + [b for b, n in enumerate(expected) if n])
        if states != list(range(self.num_blocks)):
            raise AssertionError("a block is in no state, or in two")
        if not set(self._free_queue) <= self._cached or set(self._free) & self._cached:
            raise AssertionError("a block's place does not agree with whether it is cached")
