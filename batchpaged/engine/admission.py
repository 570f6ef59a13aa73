"""Admission: which waiting sequences start, and with what of the cache."""

from collections import deque
from itertools import islice

from batchpaged.engine.block_pool import BlockPool
from batchpaged.engine.block_tables import BlockTables
from batchpaged.engine.completion_lengths import CompletionLengths
from batchpaged.engine.future_uses import FutureUses
from batchpaged.engine.in_flight import InFlight
from batchpaged.engine.prefix_cache import NO_MATCH, PrefixCache, PrefixMatch, without_last
from batchpaged.engine.room import Room
from batchpaged.engine.sequence import Sequence, Status, TokenCounts
from batchpaged.engine.step import BlockCopy
from batchpaged.engine.step_builder import StepBuilder

# How far behind the head of the queue admission looks past sequences that wait for another's prefix.
ADMISSION_WINDOW = 512


class Admission:
    """A part of the scheduler, whose state it shares."""

    def __init__(
        self,
        pool: BlockPool,
        cache: PrefixCache | None,
        uses: FutureUses | None,
        in_flight: InFlight,
        lengths: CompletionLengths,
        counts: TokenCounts,
    ) -> None:
        self._pool = pool
        self._cache = cache
        self._uses = uses
        self._in_flight = in_flight
        self._lengths = lengths
        self._counts = counts
        self._tables = BlockTables(pool)

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
            if sequence.params.prompt_logprobs is not None:
                match = without_last(match, self._pool.block_size)
            room.keep_growth(sequence)
            if not self._has_room(sequence, match, room, is_alone=not running):
                break
            self._start(sequence, match, builder)
            running.append(sequence)
            num_places += sequence.num_places
            admitted.add(sequence.seq_id)
        return deque(s for s in waiting if s.seq_id not in admitted) if admitted else waiting

    def _match(self, sequence: Sequence) -> PrefixMatch:
        return self._cache.match(sequence.token_ids, sequence.block_hashes, sequence.adapter) if self._cache else NO_MATCH

    def _is_waiting_for_prefix(self, sequence: Sequence) -> bool:
        other = sequence.waits_for
        if other is not None and (other.status is not Status.RUNNING or not other.is_prefilling):
            sequence.waits_for = other = None
        return other is not None

    def _must_defer(self, sequence: Sequence, match: PrefixMatch) -> bool:
        """Whether a running prefill computes tokens that this sequence needs and the cache does not hold yet."""
        if self._cache is None:
            return False
        shared, other = self._in_flight.longest_overlap(sequence)
        if min(shared, sequence.num_tokens - 1) <= match.num_tokens:
            return False
        sequence.waits_for, sequence.num_awaited_tokens = other, shared
        return True

    def _has_room(self, sequence: Sequence, match: PrefixMatch, room: Room, is_alone: bool) -> bool:
        """Whether its known tokens fit beside `room` without evicting what others will use. Alone it always fits."""
        num_new = self._tables.num_blocks(sequence.num_tokens) - len(match.blocks)
        if is_alone:
            return True
        if self.yields_to_reuse:
            num_revived = sum(map(self._pool.is_spare, match.blocks))
            return self._pool.num_spare - num_new - num_revived >= room.num_blocks
        num_revived = sum(not self._pool.is_referenced(block) for block in match.blocks)
        return self._pool.num_available - num_new - num_revived >= room.num_expected

    @property
    def yields_to_reuse(self) -> bool:
        """Whether fewer sequences run at once rather than evict what a waiting one will use.

        In planned order that costs little, and each token is computed once. In any other order nearly every block is
        needed some time, and nothing would be left to run in.
        """
        return self._uses is not None and self._uses.is_planned

    def _start(self, sequence: Sequence, match: PrefixMatch, builder: StepBuilder) -> None:
        for block in match.blocks:
            self._pool.acquire(block)
        num_new = self._tables.num_blocks(sequence.num_tokens) - len(match.blocks)
        sequence.block_table = [*match.blocks, *(self._pool.allocate() for _ in range(num_new))]
        if self._uses is not None:
            self._uses.remove(sequence)
        if match.copy_source is not None:
            # Copies run before any slot is written, so the source may even be a block that was just evicted.
            target = sequence.block_table[len(match.blocks)]
            builder.copy(BlockCopy(match.copy_source, target, match.num_copied_slots))
        sequence.status = Status.RUNNING
        sequence.num_cached_blocks = len(match.blocks)
        sequence.num_computed_tokens = match.num_tokens
        sequence.count_cached(match.num_tokens, self._counts)
        self._in_flight.add(sequence)
        builder.add(sequence, min(sequence.num_uncomputed_tokens, builder.budget))
