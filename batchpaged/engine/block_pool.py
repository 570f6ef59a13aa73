"""The block pool: owner of all blocks, their reference counts and the free queue."""

from collections.abc import Callable, Iterable

from batchpaged.engine.free_queue import FreeQueue


class BlockPool:
    """`num_blocks` blocks of `block_size` slots each.

    A block is in exactly one state: free (holds nothing), cached and unreferenced (in the free queue,
    findable, evictable) or referenced by at least one block table. The pool knows ids and counts; what a
    cached block holds is the prefix cache's business, and when it is used next that of the future uses.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.reference_counts = [0] * num_blocks
        self.on_evict: Callable[[int], None] = lambda block: None
        # Asked about cached blocks: when is it used next, and which one below it must be evicted first?
        self.next_use: Callable[[int], int | None] = lambda block: None
        self.leaf_below: Callable[[int], int] = lambda block: block
        # A stack: blocks given back are used again first, so a run that needs few blocks touches little memory.
        self._free = list(range(num_blocks - 1, -1, -1))
        self._free_queue: FreeQueue[int] = FreeQueue()
        self._cached: set[int] = set()

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` can hand out: free, or cached and unreferenced."""
        return len(self._free) + len(self._free_queue)

    @property
    def num_spare(self) -> int:
        """Of the available blocks those that nothing is known to need: free, or without a known use."""
        return len(self._free) + self._free_queue.num_spare

    @property
    def num_referenced(self) -> int:
        return self.num_blocks - self.num_available

    def is_cached(self, block: int) -> bool:
        return block in self._cached

    def is_referenced(self, block: int) -> bool:
        return self.reference_counts[block] > 0

    def is_spare(self, block: int) -> bool:
        """In the free queue, and without a known use."""
        return self._free_queue.is_spare(block)

    def allocate(self) -> int:
        """Take one block, reference count 1. Evicts the front of the free queue when no block is free.

        The caller must have checked `num_available`, and gives the block back with `release`.
        """
        block = self._free.pop() if self._free else self._evict()
        self.reference_counts[block] = 1
        return block

    def _evict(self) -> int:
        block = self.leaf_below(self._free_queue.first())
        self._free_queue.remove(block)
        self._cached.discard(block)
        self.on_evict(block)
        return block

    def acquire(self, block: int) -> None:
        """Add a reference to a cached or referenced block; takes it out of the free queue if it was there."""
        if self.reference_counts[block] == 0:
            self._free_queue.remove(block)
        self.reference_counts[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Drop one reference of each block, in the given order: of blocks used next at one time the first goes first."""
        for block in blocks:
            self.reference_counts[block] -= 1
            if self.reference_counts[block] == 0:
                self._retire(block)

    def _retire(self, block: int) -> None:
        if block in self._cached:
            self._free_queue.add(block, self.next_use(block))
        else:
            self._free.append(block)

    def reconsider(self, block: int) -> None:
        """Its next use has changed: give the block its place in the free queue, if it is there."""
        if block in self._free_queue:
            self._free_queue.remove(block)
            self._free_queue.add(block, self.next_use(block))

    def mark_cached(self, block: int) -> None:
        """The prefix cache can find this (referenced) block from now on."""
        self._cached.add(block)

    def unmark_cached(self, block: int) -> None:
        """The prefix cache has forgotten this (referenced) block."""
        self._cached.discard(block)

    def eviction_order(self) -> list[int]:
        """The free queue, the block that is evicted first in front."""
        return self._free_queue.in_order()

    def check(self, block_tables: Iterable[list[int]]) -> None:
        """Raise AssertionError unless every block is in one state and counts equal the tables that hold it."""
        expected = [0] * self.num_blocks
        for table in block_tables:
            for block in table:
                expected[block] += 1
        if expected != self.reference_counts:
            raise AssertionError("reference counts differ from the block tables")
        queue = self.eviction_order()
        states = sorted(self._free + queue + [b for b, n in enumerate(expected) if n])
        if states != list(range(self.num_blocks)):
            raise AssertionError("a block is in no state, or in two")
        if not set(queue) <= self._cached or set(self._free) & self._cached:
            raise AssertionError("a block's place does not agree with whether it is cached")
        if any((self.next_use(block) is None) != self.is_spare(block) for block in queue):
            raise AssertionError("a block's place in the free queue does not agree with its next use")
