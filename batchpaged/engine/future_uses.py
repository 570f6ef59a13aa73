"""What the engine knows of the future: which blocks the waiting sequences will use, and when."""

from bisect import insort

from batchpaged.engine.block_pool import BlockPool
from batchpaged.engine.memory_tiers import MemoryTiers
from batchpaged.engine.prefix_cache import PrefixCache
from batchpaged.engine.sampling_params import SamplingParams
from batchpaged.engine.sequence import Sequence, Status

MIN_RUN = 4  # sequences that follow each other in planned order, on average: units have more, a shuffled queue has two


class FutureUses:
    """Every waiting sequence is a known use of the blocks that hold its prefix.

    A use is a place in the queue. Blocks that will be shared are named by their hash, whether they exist yet or not; a
    block of which slots will be copied is named by its id, as soon as its owner lets it go. In planned order a prompt
    shares most with the one before it, so the block to copy from is that one's.
    """

    def __init__(self, pool: BlockPool, cache: PrefixCache, tiers: MemoryTiers | None = None) -> None:
        self._pool = pool
        self._cache = cache
        self._tiers = tiers
        if tiers is not None:
            tiers.next_use = self._next_place
        self._places: dict[bytes | int, list[int]] = {}  # ascending; an entry counts while it is in `_waiting`
        self._waiting: set[int] = set()  # places of sequences that wait
        self._first = 0  # the smallest place given so far
        self._next = 1  # the place of the next one added
        self._num_jumps = 0  # sequences added that sort before the one added before them
        self._last: Sequence | None = None  # the one added last, whatever has become of it
        self._expected: Sequence | None = None
        self._forget = pool.on_evict
        pool.on_evict = self._on_evict
        pool.next_use = self.next_use

    def next_use(self, block: int) -> int | None:
        """The nearest place in the queue that uses this cached block."""
        shared = self._next_place(self._cache.hash_of(block))
        copied = self._next_place(block)
        if shared is None or copied is None:
            return shared if copied is None else copied
        return min(shared, copied)

    @property
    def is_planned(self) -> bool:
        """Whether sequences come in planned order, but for jumps between units: then a block is used soon, or never."""
        return self._num_jumps * MIN_RUN <= self._next

    # --- the queue changes ---

    def add(self, sequence: Sequence) -> None:
        """`sequence` waits, behind all others."""
        self._enter(sequence)
        self._num_jumps += self._last is not None and sequence.sort_key < self._last.sort_key
        self._last = sequence
        self.expect(None)

    def add_first(self, sequence: Sequence) -> None:
        """`sequence` was preempted and waits again, before all others. Comes before its blocks are released."""
        num_swapped = sequence.num_swapped_blocks
        self._cache.extend_hashes(sequence.block_hashes, sequence.token_ids, num_swapped, sequence.root)
        self._first -= 1
        self._wait(sequence, self._first)

    def remove(self, sequence: Sequence) -> None:
        """`sequence` waits no more. Comes after it has acquired what it shares."""
        self._copy_no_more(sequence)
        self._waiting.discard(sequence.place)
        sequence.place = None
        for block_hash in reversed(self._shareable(sequence)):  # the last block first, as they are given back
            if self._next_place(block_hash) is None:
                self._reconsider(block_hash)

    def expect(self, token_ids: list[int] | None) -> None:
        """A prompt that will be added next, but is not there yet; the last word counts. Its adapter is that of the last one added."""
        if self._expected is not None:
            self.remove(self._expected)
        self._expected = None
        if token_ids:
            last = self._last
            params, adapter = (SamplingParams(), None) if last is None else (last.params, last.adapter)
            self._expected = Sequence(-1, token_ids, len(token_ids), params, seed=0, adapter=adapter)
            self._enter(self._expected)

    def before_release(self, sequence: Sequence) -> None:
        """`sequence` is about to give its blocks back: the one that its successor copies from is needed."""
        successor = sequence.successor
        if successor is None or successor.place is None or successor.num_preemptions:  # then it has copied them before
            return
        if sequence.copied_index >= len(sequence.block_table):
            return
        block = sequence.block_table[sequence.copied_index]
        if self._pool.is_cached(block):
            self._copy_from(block, successor)

    # --- uses ---

    def _enter(self, sequence: Sequence) -> None:
        last, size = self._last, self._pool.block_size
        num_sharable = sequence.num_prompt_tokens - 1  # the last token is always computed
        shared = 0 if last is None else last.num_common(sequence)
        shared = min(shared, num_sharable)
        if shared >= size:
            sequence.block_hashes = last.block_hashes[: shared // size]
        self._cache.extend_hashes(sequence.block_hashes, sequence.token_ids, num_sharable // size, sequence.root)
        self._wait(sequence, self._next)
        self._next += 1
        if shared % size:
            self._follow(last, sequence, shared // size)

    def _wait(self, sequence: Sequence, place: int) -> None:
        sequence.place = place
        self._waiting.add(place)
        for block_hash in self._shareable(sequence):
            if self._use(block_hash, place):
                self._reconsider(block_hash)

    def _shareable(self, sequence: Sequence) -> list[bytes]:
        """Hashes of the prompt's blocks that it can share; what it has generated nobody needs but itself, after a swap."""
        num_sharable = (sequence.num_prompt_tokens - 1) // self._pool.block_size
        return sequence.block_hashes[: max(num_sharable, sequence.num_swapped_blocks)]

    def _follow(self, last: Sequence, sequence: Sequence, index: int) -> None:
        """`sequence` will copy slots of the block that is `index`-th in the table of `last`."""
        if last.status is not Status.FINISHED:
            last.successor, last.copied_index = sequence, index
            return
        source = self._cache.match(sequence.token_ids, sequence.block_hashes, sequence.root).copy_source
        if source is not None:
            self._copy_from(source, sequence)

    def _copy_from(self, block: int, sequence: Sequence) -> None:
        self._copy_no_more(sequence)
        sequence.copy_source = block
        self._use(block, sequence.place)
        self._pool.reconsider(block)

    def _copy_no_more(self, sequence: Sequence) -> None:
        source, sequence.copy_source = sequence.copy_source, None
        places = self._places.get(source, [])
        if sequence.place in places:  # else the block was evicted, and is perhaps in use for others
            places.remove(sequence.place)
            if not places:
                del self._places[source]
            self._pool.reconsider(source)

    def _use(self, key: bytes | int, place: int) -> bool:
        """Whether it is the only use so far."""
        places = self._places.setdefault(key, [])
        if places and place < places[-1]:
            insort(places, place)
        else:
            places.append(place)
        return len(places) == 1

    def _next_place(self, key: bytes | int | None) -> int | None:
        places = self._places.get(key)
        if places is None:
            return None
        while places[0] not in self._waiting:
            places.pop(0)
            if not places:
                del self._places[key]
                return None
        return places[0]

    def _reconsider(self, block_hash: bytes) -> None:
        node = self._cache.find(block_hash)
        if node is None:
            return
        if node.block is not None:
            self._pool.reconsider(node.block)
        else:
            self._tiers.reconsider(node)

    def _on_evict(self, block: int) -> None:
        self._places.pop(block, None)
        self._forget(block)

    def check(self) -> None:
        """Raise AssertionError unless every use is in order, and the next one that of a sequence that waits."""
        if any(places[0] not in self._waiting or places != sorted(places) for places in self._places.values()):
            raise AssertionError("a use is not in order, or its sequence waits no more")


def yields_to_reuse(uses: FutureUses | None) -> bool:
    """Whether fewer sequences run at once rather than evict what a waiting one will use.

    In planned order that costs little, and each token is computed once. In any other order nearly every block is
    needed some time, and nothing would be left to run in.
    """
    return uses is not None and uses.is_planned
