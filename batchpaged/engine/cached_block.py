"""A node of the prefix tree, and the places in lower tiers where it can lie."""

from collections import deque
from dataclasses import dataclass

from batchpaged.engine.free_queue import FreeQueue

Root = str | None  # what a prompt starts from: see Sequence.root; None: the base model, and nothing besides


@dataclass(eq=False, slots=True)
class CachedBlock:
    """A node of the prefix tree. It has either a block of the pool or a place in a lower tier."""

    parent: "CachedBlock | Root"
    hash: bytes | None  # None for an open block: its owner still appends to it
    tokens: tuple[int, ...]  # at most block_size
    root: Root  # of its whole branch
    depth: int  # blocks that it follows
    stage: int = 0  # of the run, that computed it: PrefixCache.stage as it was then
    block: int | None = None
    place: "TierPlace | None" = None


@dataclass(frozen=True, slots=True)
class TierPlace:
    tier: "Tier"
    index: int


class Tier:
    """`num_places` places for one block each, and who lies in them."""

    def __init__(self, num_places: int) -> None:
        self.num_places = num_places
        self.free = deque(range(num_places))  # one that was given up last is taken last: it may still be read or written
        self.queue: FreeQueue[CachedBlock] = FreeQueue()

    @property
    def num_used(self) -> int:
        return self.num_places - len(self.free)

    def take(self, node: CachedBlock, use: int) -> int:
        """One of the free places, for this node."""
        index = self.free.popleft()
        node.place = TierPlace(self, index)
        self.queue.add(node, use)
        return index
