"""Where blocks go that are evicted from the pool while a waiting sequence still needs them: host memory, then disk.

A preempted sequence is one that needs its blocks, so a swap is nothing else: its blocks stay in the pool for as long as nobody
wants their room, are stored when somebody does, and are loaded when it comes back. Who is to go first is decided as in the
pool, by the next use (see free_queue.py). Plain data: places are numbers here, and what lies there is moved by the model side,
in the order of the moves (see step.py).

The host tier is the only one that is written from the pool. From it blocks go to disk a little before their room is needed,
and come back a little before their sequences do.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from batchpaged.engine.cached_block import CachedBlock, Tier, TierPlace
from batchpaged.engine.sequence import Sequence, is_storable
from batchpaged.engine.step import BlockMove, MoveKind
from batchpaged.tiers.costs import TierCosts

# Of the host tier, kept empty by writing to disk ahead: what is saved next then waits for no disk.
WRITE_AHEAD_SHARE = 1 / 8
_MOST_BLOCKS = 2**32  # of one prompt


@dataclass
class TierCounts:
    """Blocks, since the engine started or a stage began."""

    most_in_host: int = 0
    most_on_disk: int = 0
    num_saved: int = 0  # from the pool to host memory
    num_loaded: int = 0  # to the pool, from either tier
    num_written: int = 0  # from host memory to disk
    num_read: int = 0  # from disk, ahead of use or for it
    num_dropped: int = 0  # that were still needed: for want of room, or because the disk failed
    num_swaps: int = 0  # preempted sequences whose blocks are kept for them
    num_lost: int = 0  # times that a stored block could not be read again: all stored ones were dropped


class MemoryTiers:
    """`next_use` tells of a block's hash when it is used next; `on_drop` is told of a node that is in no tier any more."""

    def __init__(self, num_frames: int, num_slots: int, block_size: int, costs: TierCosts) -> None:
        """`num_frames`: blocks of the host tier; `num_slots`: of the disk tier."""
        self.host, self.disk = Tier(num_frames), Tier(num_slots)
        self.counts = TierCounts()
        self.next_use: Callable[[bytes], int | None] = lambda block_hash: None
        self.on_drop: Callable[[CachedBlock], None] = lambda node: None
        self.costs = costs
        self._block_size = block_size
        self._num_kept_free = int(num_frames * WRITE_AHEAD_SHARE)
        self._gained = 0.0  # seconds, by blocks that were loaded again; less what it took to save those that have left their place
        self._moves: list[BlockMove] = []
        self._loads: list[BlockMove] = []
        self._loading: list[CachedBlock] = []  # into the pool, by the plan that is being made
        self._left: list[TierPlace] = []  # by these: free once the plan has started

    def _use_of(self, node: CachedBlock) -> int | None:
        """When it is needed: a place in the queue, and there after all that it follows. So of a prompt the end goes first, and
        never a node before one that is useless without it.
        """
        next_use = self.next_use(node.hash)
        return None if next_use is None else next_use * _MOST_BLOCKS + node.depth

    # --- from the pool, and back ---

    @property
    def _can_gain(self) -> bool:
        """Whether to save one more block is expected to save time: as long as those before have not lost, by being dropped, what it
        takes to fill the host tier once. A tier far too small for its rows is filled again and again in vain.
        """
        return self.costs.host_pays(self._block_size) and self._gained >= -self.costs.save * self.host.num_places

    @property
    def num_free(self) -> int:
        """Blocks that it could still take, and would."""
        if not self._can_gain:
            return 0
        return len(self.host.free) + (len(self.disk.free) if self.costs.disk_pays(self._block_size) else 0)

    def num_to_swap(self, sequence: Sequence) -> int:
        """Leading blocks of a preempted sequence to be kept for it: all that are full, if that takes less time than to compute
        them again, and there is room; else none, but for what it shares with others that wait.
        """
        num_findable = (len(sequence.token_ids) - 1) // self._block_size  # the last token is always computed
        num_full = min(sequence.num_cached_blocks, num_findable)
        return num_full if is_storable(sequence.root) and num_full <= self.num_free else 0

    def take_in(self, node: CachedBlock, block: int) -> bool:
        """The pool evicts this node from `block`: whether it is stored."""
        use = self._use_of(node)
        if use is None:
            return False
        if not is_storable(node.root) or not self._can_gain:
            return False
        if not self.host.free and not self._push_out_last(use):
            self.counts.num_dropped += 1
            return False
        frame = self.host.take(node, use)
        self._moves.append(BlockMove(MoveKind.SAVE, block, frame))
        self.counts.num_saved += 1
        self._note_use()
        return True

    def worth_loading(self, stored: tuple[CachedBlock, ...]) -> tuple[CachedBlock, ...]:
        """Of blocks that follow each other, the leading ones by which a sequence gains most."""
        best, num_best, gained = 0.0, 0, 0.0
        for count, node in enumerate(stored, 1):
            gained += self.costs.gain(self._block_size, is_on_disk=node.place.tier is self.disk)
            if gained > best:
                best, num_best = gained, count
        return stored[:num_best]

    def hold(self, nodes: Iterable[CachedBlock]) -> None:
        """These are about to be loaded: nothing pushes them out any more."""
        for node in nodes:
            node.place.tier.queue.remove(node)

    def load(self, node: CachedBlock, block: int) -> None:
        """The plan that is being made loads this held node into a block."""
        place = node.place
        is_on_disk = place.tier is self.disk
        self._loads.append(BlockMove(MoveKind.LOAD_FROM_DISK if is_on_disk else MoveKind.LOAD, place.index, block))
        self._loading.append(node)
        self._left.append(place)
        self.counts.num_loaded += 1
        self.counts.num_read += is_on_disk
        self._gained += self.costs.gain(self._block_size, is_on_disk) - self.costs.save
        node.place = None

    def give_up(self, node: CachedBlock) -> None:
        """It was computed again, or is needed no more, or there is no room for it."""
        self._gained -= self.costs.save
        self._leave_place(node)

    def _leave_place(self, node: CachedBlock) -> None:
        node.place.tier.queue.remove(node)
        node.place.tier.free.append(node.place.index)
        node.place = None

    def drop(self, node: CachedBlock) -> None:
        self.give_up(node)
        self.on_drop(node)

    def reconsider(self, node: CachedBlock) -> None:
        """A use of a stored node is over, or has come: nothing is stored without one."""
        if self.next_use(node.hash) is None:
            self.drop(node)

    # --- between host memory and disk ---

    def _push_out_last(self, use: int) -> bool:
        """Empty a place of the host tier for what is needed then, where none is free: the one that is needed last goes to disk.
        Where that has no room, it is dropped, unless what is to come is needed later still.
        """
        if not len(self.host.queue):
            return False
        last = self.host.queue.first()
        if self._write(last):
            return True
        return self._drop_later(self.host, use)

    def _drop_later(self, tier: Tier, use: int) -> bool:
        """Drop the one of a tier that is needed last, if that is later than this."""
        if not len(tier.queue) or self._use_of(tier.queue.first()) <= use:
            return False
        self.counts.num_dropped += 1
        self.drop(tier.queue.first())
        return True

    def _write(self, node: CachedBlock) -> bool:
        """Move it from host memory to disk; whether there is room, and it is worth it."""
        if not self.costs.disk_pays(self._block_size):
            return False
        if not self.disk.free and not self._drop_later(self.disk, self._use_of(node)):
            return False
        if node.place is None:  # what was dropped for it was above it: where hashes collide, a child may be needed sooner
            return True
        self._transfer(node, self.disk, MoveKind.WRITE)
        self.counts.num_written += 1
        return True

    def _transfer(self, node: CachedBlock, tier: Tier, kind: MoveKind) -> None:
        """From the tier that it is in to a free place of the other one."""
        source = node.place.index
        self._leave_place(node)
        self._moves.append(BlockMove(kind, source, tier.take(node, self._use_of(node))))
        self._note_use()

    def write_ahead(self) -> None:
        """Keep a share of the host tier free, as long as there is room on disk."""
        while len(self.host.free) < self._num_kept_free and len(self.host.queue):
            if not self._write(self.host.queue.first()):
                return

    def read_ahead(self, nodes: Iterable[CachedBlock]) -> None:
        """Bring stored nodes that are used soon, in this order, from disk to host memory."""
        for node in nodes:
            if node.place is None:  # dropped with another one, to make room
                return
            if node.place.tier is not self.disk:
                continue
            if len(self.host.free) <= self._num_kept_free and not self._is_before_last(node):
                return
            if not self.host.free and not self._push_out_last(self._use_of(node)) or node.place is None:  # see _write
                return
            self._transfer(node, self.host, MoveKind.READ)
            self.counts.num_read += 1

    def _is_before_last(self, node: CachedBlock) -> bool:
        """Whether something in host memory is needed later, and not by the same sequence."""
        return len(self.host.queue) > 0 and self.next_use(self.host.queue.first().hash) > self.next_use(node.hash)

    def _note_use(self) -> None:
        counts = self.counts
        counts.most_in_host = max(counts.most_in_host, self.host.num_used)
        counts.most_on_disk = max(counts.most_on_disk, self.disk.num_used)

    # --- the plan ---

    def is_loading(self, block: int | None) -> bool:
        """Whether the plan that is being made loads something into this block: nothing can be copied from it before."""
        return any(move.target == block for move in self._loads)

    def take_moves(self) -> tuple[tuple[BlockMove, ...], tuple[BlockMove, ...]]:
        """Of the plan that has been made: those before its copies, and those after them."""
        moves, self._moves = tuple(self._moves), []
        loads, self._loads = tuple(self._loads), []
        return moves, loads

    def start(self) -> None:
        """The plan has started: what it loads has left its place."""
        for place in self._left:
            place.tier.free.append(place.index)
        self._left, self._loading = [], []

    def abandon(self) -> list[CachedBlock]:
        """The plan has failed, and nobody knows which of its moves were made: all that is stored is dropped.

        -> nodes whose blocks it should have filled, the last one first
        """
        loading = self._loading[::-1]
        self.start()
        for tier in (self.host, self.disk):
            while len(tier.queue):
                self.counts.num_dropped += 1
                self.drop(tier.queue.first())
        self._gained = 0.0  # of whether storing pays this says nothing
        return loading

    def check(self, stored: Iterable[CachedBlock]) -> None:
        """Raise AssertionError unless every place is free, left, or held by one stored node with a known use."""
        for tier in (self.host, self.disk):
            held = [node.place.index for node in stored if node.place.tier is tier]
            left = [place.index for place in self._left if place.tier is tier]
            if sorted([*held, *left, *tier.free]) != list(range(tier.num_places)):
                raise AssertionError("a place of a tier is in no state, or in two")
            if len(held) != len(tier.queue) or any(self.next_use(node.hash) is None for node in tier.queue.in_order()):
                raise AssertionError("a stored block is not needed, or cannot be pushed out")
