"""Admission: which waiting sequences start, and with what of the cache."""

from collections import deque
from itertools import islice

from batchpaged.engine.block_pool import BlockPool
from batchpaged.engine.block_tables import BlockTables
from batchpaged.engine.completion_lengths import CompletionLengths
from batchpaged.engine.future_uses import FutureUses, yields_to_reuse
from batchpaged.engine.in_flight import InFlight
from batchpaged.engine.memory_tiers import MemoryTiers
from batchpaged.engine.prefix_cache import NO_MATCH, PrefixCache, PrefixMatch, with_stored, without_last
from batchpaged.engine.room import Room
from batchpaged.engine.sequence import Sequence, Status, TokenCounts
from batchpaged.engine.step import BlockCopy
from batchpaged.engine.step_builder import StepBuilder

# How far behind the head of the queue admission looks past sequences that wait for another's prefix.
ADMISSION_WINDOW = 512
# Waiting sequences whose blocks are brought from disk to host memory ahead: about as many as a few steps admit.
READ_AHEAD = 16


class Admission:
    """A part of the scheduler, whose state it shares."""

    def __init__(
        self,
        pool: BlockPool,
        tables: BlockTables,
        cache: PrefixCache | None,
        uses: FutureUses | None,
        in_flight: InFlight,
        lengths: CompletionLengths,
        counts: TokenCounts,
        tiers: MemoryTiers | None = None,
    ) -> None:
        self._pool = pool
        self._tables = tables
        self._cache = cache
        self._uses = uses
        self._in_flight = in_flight
        self._lengths = lengths
        self._counts = counts
        self._tiers = tiers

    def admit(
        self, waiting: deque[Sequence], running: list[Sequence], max_running: int, builder: StepBuilder
    ) -> deque[Sequence]:
        """Admit waiting sequences in order while budget and blocks last, passing over those that wait for a prefix.

        Adds them to `running`. -> those that wait on
        """
        num_places = sum(sequence.num_places for sequence in running)
        if not waiting or not builder.budget or num_places >= max_running:
            return waiting
        room = Room(self._pool.block_size, self._lengths)
        for sequence in running:
            room.keep_growth(sequence)
        passed_over: list[Sequence] = []
        admitted: set[int] = set()
        for sequence in islice(waiting, ADMISSION_WINDOW):
            if not builder.budget or (running and num_places + sequence.num_places > max_running):
                break
            match = None if self._is_waiting_for_prefix(sequence) else self._match(sequence)
            if match is None or self._must_defer(sequence, match):
                passed_over.append(sequence)
                continue
            while passed_over:
                room.keep_all(passed_over.pop())
            room.keep_growth(sequence)
            if not self._try_to_start(sequence, match, room, builder, is_alone=not running):
                break
            running.append(sequence)
            num_places += sequence.num_places
            admitted.add(sequence.seq_id)
        return deque(s for s in waiting if s.seq_id not in admitted) if admitted else waiting

    def _match(self, sequence: Sequence) -> PrefixMatch:
        if self._cache is None:
            return NO_MATCH
        match = self._cache.match(sequence.token_ids, sequence.block_hashes, sequence.root)
        stored = self._tiers.worth_loading(match.stored) if match.stored else ()
        return with_stored(match, stored, self._pool.block_size)

    def _is_waiting_for_prefix(self, sequence: Sequence) -> bool:
        other = sequence.waits_for
        if other is not None and (other.status is not Status.RUNNING or not other.is_prefilling):
            sequence.waits_for = other = None
        return other is not None

    def _must_defer(self, sequence: Sequence, match: PrefixMatch) -> bool:
        """Whether a running prefill computes tokens that this sequence needs and the cache does not hold yet."""
        if self._cache is None:
            return False
        if self._tiers is not None and self._tiers.is_loading(match.copy_source):
            return True
        shared, other = self._in_flight.longest_overlap(sequence)
        if min(shared, sequence.num_tokens - 1) <= match.num_tokens:
            return False
        sequence.waits_for, sequence.num_awaited_tokens = other, shared
        return True

    def read_ahead(self, waiting: deque[Sequence]) -> None:
        """What the next few will load is brought nearer, as far as it is on disk."""
        if not self._tiers.disk.num_used:
            return
        for sequence in islice(waiting, READ_AHEAD):
            stored = self._cache.match(sequence.token_ids, sequence.block_hashes, sequence.root).stored
            self._tiers.read_ahead(self._tiers.worth_loading(stored))

    def _try_to_start(
        self, sequence: Sequence, match: PrefixMatch, room: Room, builder: StepBuilder, is_alone: bool
    ) -> bool:
        """False, and nothing changes, where blocks do not last."""
        if sequence.params.prompt_logprobs is not None:
            match = without_last(match, self._pool.block_size)
        if not self._has_room(sequence, match, room, is_alone):
            return False
        self._start(sequence, match, builder)
        return True

    def _has_room(self, sequence: Sequence, match: PrefixMatch, room: Room, is_alone: bool) -> bool:
        """Whether its known tokens fit beside `room` without evicting what others will use. Alone it always fits."""
        num_new = self._tables.num_blocks(sequence.num_tokens) - len(match.blocks)
        if is_alone:
            return True
        if yields_to_reuse(self._uses):
            num_revived = sum(map(self._pool.is_spare, match.blocks))
            return self._pool.num_spare - num_new - num_revived >= room.num_blocks
        num_revived = sum(not self._pool.is_referenced(block) for block in match.blocks)
        return self._pool.num_available - num_new - num_revived >= room.num_expected

    def _start(self, sequence: Sequence, match: PrefixMatch, builder: StepBuilder) -> None:
        num_earlier = 0 if self._cache is None else self._cache.num_earlier_tokens(match)  # before anything is evicted
        for block in match.blocks:
            self._pool.acquire(block)
        if match.stored:
            self._tiers.hold(match.stored)  # allocation may store other blocks, for which they must not go
        num_new = self._tables.num_blocks(sequence.num_tokens) - len(match.blocks)
        new = [self._pool.allocate() for _ in range(num_new)]
        sequence.block_table = [*match.blocks, *new]
        for node, block in zip(match.stored, new, strict=False):
            self._tiers.load(node, block)
            self._cache.put_back(node, block)
        if self._uses is not None:
            self._uses.remove(sequence)
        if match.copy_source is not None:
            # Copies run before any slot is written, and before loads, so the source may even be a block that was just evicted.
            target = sequence.block_table[len(match.blocks)]
            builder.copy(BlockCopy(match.copy_source, target, match.num_copied_slots))
        sequence.status = Status.RUNNING
        sequence.num_cached_blocks = len(match.blocks) + len(match.stored)
        sequence.num_computed_tokens = match.num_tokens
        sequence.count_cached(match.num_tokens, self._counts, num_earlier)
        self._in_flight.add(sequence)
        builder.add(sequence, min(sequence.num_uncomputed_tokens, builder.budget))
