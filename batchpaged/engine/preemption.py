"""Blocks for sequences that run already, and which of them give theirs up where there are not enough."""

from collections.abc import Iterable

from batchpaged.engine.block_pool import BlockPool
from batchpaged.engine.block_tables import BlockTables
from batchpaged.engine.future_uses import FutureUses, yields_to_reuse
from batchpaged.engine.in_flight import InFlight
from batchpaged.engine.memory_tiers import MemoryTiers
from batchpaged.engine.queues import Queues
from batchpaged.engine.sequence import Sequence, Status, is_storable
from batchpaged.engine.step import BlockCopy


class Preemption:
    """A part of the scheduler, whose state it shares."""

    def __init__(
        self,
        pool: BlockPool,
        tables: BlockTables,
        queues: Queues,
        in_flight: InFlight,
        uses: FutureUses | None,
        tiers: MemoryTiers | None,
    ) -> None:
        self.num_preemptions = 0
        self._pool = pool
        self._tables = tables
        self._queues = queues
        self._in_flight = in_flight
        self._uses = uses
        self._tiers = tiers

    def must_wait(self) -> bool:
        """Whether pending tokens have to be known first: to be looked at, or so that nobody is preempted who has finished."""
        pending = [s for s in self._queues.running if s.num_pending_tokens]
        if not pending:
            return False
        num_new = sum(map(self._tables.num_missing, filter(_takes_blocks, self._queues.running)))
        num_there = self._num_there(is_careful=yields_to_reuse(self._uses))
        return num_new > num_there or any(s.needs_known_tokens for s in pending)

    def _num_there(self, is_careful: bool) -> int:
        """Blocks that running sequences can take; to be careful is to evict none that is needed, unless it can be stored, as
        blocks of all rows can or of none: what rows want besides is the same for a pipeline's.
        """
        if not is_careful:
            return self._pool.num_available
        can_store = self._tiers is not None and is_storable(self._queues.running[-1].root)
        num_storable = self._tiers.num_free if can_store else 0
        return min(self._pool.num_spare + num_storable, self._pool.num_available)

    def reserve(self, sequences: Iterable[Sequence]) -> list[BlockCopy] | None:
        """Make their block tables cover all of their tokens, and what is written next their own.

        -> the copies-on-write; None if they had to be preempted for it
        """
        copies: list[BlockCopy] = []
        for sequence in sequences:
            while self._tables.num_missing(sequence):
                is_careful = yields_to_reuse(self._uses) and any(s.row != sequence.row for s in self._queues.running)
                if self._num_there(is_careful):
                    self._tables.extend(sequence, copies)
                    continue
                self.preempt_last()
                if sequence.status is not Status.RUNNING:
                    return None
        return copies

    def preempt_last(self) -> None:
        """Release the blocks of the sequence admitted last. What the cache still holds of them when it comes back, or a lower
        tier does, is used again; the rest is computed again.

        Beams go together, and come back together: the prompt is computed, then each of them what is its own.
        """
        sequence = self._queues.running[-1]
        if sequence.beams is not None and sequence.beams.is_parted:
            sequence, others = sequence.beams.members[0], sequence.beams.members[1:]
            sequence.beams.store()
            for other in others:
                self._tables.release(other, Status.WAITING)
        self._in_flight.discard(sequence)
        if self._tiers is not None:
            sequence.num_swapped_blocks = self._tiers.num_to_swap(sequence)
            self._tiers.counts.num_swaps += sequence.num_swapped_blocks > 0
        if self._uses is not None:
            self._uses.add_first(sequence)
        self._tables.release(sequence, Status.WAITING)
        sequence.num_computed_tokens = sequence.num_cached_blocks = sequence.num_forced_tokens = 0
        sequence.num_preemptions += 1
        self.num_preemptions += 1
        self._queues.drop_stopped()
        self._queues.waiting.appendleft(sequence)


def _takes_blocks(sequence: Sequence) -> bool:
    """In the next step, besides those that it was admitted with."""
    is_restored = sequence.is_prefilling and sequence.beams is not None and sequence.beams.is_parted
    return is_restored or sequence.is_decoding
