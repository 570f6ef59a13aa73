"""Which worker computes which unit: contiguous ranges of even cost, so that neighbours meet in one prefix cache.

Where a range is cut, the worker of the far side computes once more what the two sides share. So there are as few cuts
as workers need, and each is made where little is shared. Costs are in prefilled tokens, as in planning/cost.py.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from batchpaged.planning.units import Unit

EVEN_WINDOW = 0.1  # of a worker's share: how far a first cut may move to where less is shared
MIDDLE_WINDOW = 0.25  # of a range's cost: how far from its middle a later cut may be
# What a worker has in flight keeps its batch full while word of its progress travels and the next unit comes, which takes
# some tenths of a second. What it has in flight nobody else can take; so it is less as the end comes near. One of
# these is enough.
ROWS_AHEAD = 1.0  # times max_sequences, beyond a full batch: rows that have not ended; or as many as
UNITS_AHEAD = 2  # units have
STEPS_AHEAD = 16  # rows not yet begun that cost as much as so many full steps; these are few where prompts are long
SHARE_AHEAD = 0.5  # rows not yet begun that cost so much of what is left per worker, so that all end together


@dataclass(frozen=True)
class Batch:
    """What an engine computes at once."""

    max_sequences: int
    max_tokens: int  # in a step


@dataclass(frozen=True)
class OpenRows:
    """How far an engine is with the rows of units that it has not finished."""

    num_begun: int  # admitted, whether they have ended or not
    num_ended: int


@dataclass(frozen=True)
class CompletionSum:
    """How long completions are."""

    num_rows: int
    num_tokens: int  # of all their completions

    def __add__(self, other: "CompletionSum") -> "CompletionSum":
        return CompletionSum(self.num_rows + other.num_rows, self.num_tokens + other.num_tokens)


class UnitRanges:
    """Hands out units; each slot (a worker's place) has one contiguous range of those that are left."""

    def __init__(self, units: Sequence[Unit], num_slots: int, first_guess: float, batch: Batch) -> None:
        """`units` in planned order; `first_guess`: tokens per completion that their costs assume."""
        self.num_left = len(units)  # units that no slot has been given
        self.num_steals = 0
        self._units = units
        self._batch = batch
        rows_per_unit = sum(unit.end - unit.start for unit in units) / max(1, len(units))
        num_rows_ahead = max(ROWS_AHEAD * batch.max_sequences, UNITS_AHEAD * rows_per_unit)
        self._num_rows_wanted = batch.max_sequences + num_rows_ahead
        self._first_guess = first_guess
        self._completions = CompletionSum(0, 0)
        # Cost of all units before a place in `units`: what does not depend on completions, and what does.
        self._prefill_sums = [0.0, *accumulate(unit.num_prefilled for unit in units)]
        self._decode_sums = [0.0, *accumulate(unit.cost - unit.num_prefilled for unit in units)]
        self._prefill_left, self._decode_left = self._prefill_sums[-1], self._decode_sums[-1]
        self._attended: frozenset[int] = frozenset()
        self._in_flight: list[dict[int, int]] = [{} for _ in range(num_slots)]  # unit -> its place
        self._slot_of: dict[int, int] = {}  # of units in flight
        self._open_rows = [OpenRows(0, 0)] * num_slots
        bounds = self._even_bounds(num_slots)
        self._ranges = list(zip(bounds[:-1], bounds[1:], strict=True))  # places [start, end)

    @property
    def completion_guess(self) -> float:
        """Tokens per completion: the mean so far."""
        known = self._completions
        return known.num_tokens / known.num_rows if known.num_rows else self._first_guess

    # --- what becomes known ---

    def attend(self, slots: Collection[int]) -> None:
        """The slots that have a worker now; what the others have left goes to whoever asks first."""
        self._attended = frozenset(slots)

    def report(self, slot: int, open_rows: OpenRows) -> None:
        self._open_rows[slot] = open_rows

    def finish(self, unit: int, completions: CompletionSum) -> None:
        """A unit that was handed out is done: completions to come are expected to be as long as those so far."""
        del self._in_flight[self._slot_of.pop(unit)][unit]
        self._completions += completions

    # --- what is handed out ---

    def hand_out(self, slot: int) -> Iterator[int]:
        """The units that the slot is given now, so that it has enough in flight."""
        while not self._has_enough(slot) and (unit := self.take(slot)) is not None:
            yield unit

    def _has_enough(self, slot: int) -> bool:
        num_open = self._num_rows_in_flight(slot) - self._open_rows[slot].num_ended
        if num_open >= self._num_rows_wanted:
            return True
        enough = STEPS_AHEAD * self._batch.max_tokens
        if len(self._ranges) > 1:  # else there is nobody to leave anything to
            enough = min(enough, SHARE_AHEAD * self._weigh(self._prefill_left, self._decode_left) / len(self._ranges))
        return self._waiting_cost(slot) > enough

    def take(self, slot: int) -> int | None:
        """The slot's next unit; when its range is used up, first the far half of the range with most cost left.

        None when nothing is left, or nothing that is worth the prefix which would be computed again.
        """
        if self._is_used_up(slot):
            self._steal(slot)
        if self._is_used_up(slot):
            return None
        start, end = self._ranges[slot]
        self._ranges[slot] = start + 1, end
        unit = self._units[start].index
        self._in_flight[slot][unit] = start
        self._slot_of[unit] = slot
        self._count_left(start)
        return unit

    def _count_left(self, taken: int) -> None:
        self.num_left -= 1
        self._prefill_left -= self._prefill_sums[taken + 1] - self._prefill_sums[taken]
        self._decode_left -= self._decode_sums[taken + 1] - self._decode_sums[taken]

    def _is_used_up(self, slot: int) -> bool:
        start, end = self._ranges[slot]
        return start == end

    def _steal(self, slot: int) -> None:
        if not self.num_left:
            return
        victim = max(range(len(self._ranges)), key=self._cost_of_range)
        start, end = self._ranges[victim]
        cut = self._middle(start, end)
        if victim in self._attended and not self._is_worth_it(slot, victim, cut):
            return
        self._ranges[victim], self._ranges[slot] = (start, cut), (cut, end)
        self.num_steals += 1

    def _is_worth_it(self, slot: int, victim: int, cut: int) -> bool:
        """Whether the later of the two is done earlier by more than the prefix that is computed again."""
        moved, lost = self._cost(cut, self._ranges[victim][1]), self._num_shared(cut)
        before = self._load(victim)
        after = max(before - moved, self._load(slot) + moved + lost)
        return before - after > lost

    # --- cost ---

    def _cost(self, start: int, end: int) -> float:
        prefill = self._prefill_sums[end] - self._prefill_sums[start]
        return self._weigh(prefill, self._decode_sums[end] - self._decode_sums[start])

    def _weigh(self, prefill: float, decode: float) -> float:
        return prefill + decode * self.completion_guess / self._first_guess

    def _cost_of_range(self, slot: int) -> tuple[float, int]:
        """And its units: those of rows without a prompt cost nothing, but are to be done."""
        start, end = self._ranges[slot]
        return self._cost(start, end), end - start

    def _load(self, slot: int) -> float:
        """What the slot's engine has not begun."""
        return self._cost(*self._ranges[slot]) + self._waiting_cost(slot)

    def _waiting_cost(self, slot: int) -> float:
        """Of rows in flight that the engine has not begun, taken for average ones."""
        num_rows = self._num_rows_in_flight(slot)
        share = 1 - self._open_rows[slot].num_begun / num_rows if num_rows else 0
        return max(0.0, share) * sum(self._cost(place, place + 1) for place in self._in_flight[slot].values())

    def _num_rows_in_flight(self, slot: int) -> int:
        return sum(map(self._num_rows, self._in_flight[slot].values()))

    def _num_rows(self, place: int) -> int:
        return self._units[place].end - self._units[place].start

    def _num_shared(self, place: int) -> int:
        return self._units[place].num_shared if place < len(self._units) else 0

    # --- cuts ---

    def _even_bounds(self, num_slots: int) -> list[int]:
        num_units = len(self._units)
        share = self._cost(0, num_units) / num_slots
        cuts = [self._cut(0, num_units, i * share, EVEN_WINDOW * share) for i in range(1, num_slots)]
        return [0, *accumulate(cuts, max), num_units]

    def _middle(self, start: int, end: int) -> int:
        """Each side has a unit; one unit alone is on the far side."""
        if end - start == 1:
            return start
        cost = self._cost(start, end)
        return min(max(self._cut(start, end, cost / 2, MIDDLE_WINDOW * cost), start + 1), end - 1)

    def _cut(self, start: int, end: int, target: float, reach: float) -> int:
        """Where to cut [start, end), so that about `target` of its cost comes before: where least is shared near there."""
        places = range(start, end + 1)

        def cost_before(place: int) -> float:
            return self._cost(start, place)

        low = bisect_left(places, target - reach, key=cost_before)
        high = bisect_right(places, target + reach, key=cost_before)
        nearest = bisect_left(places, target, key=cost_before)
        candidates = places[low:high] or places[max(nearest - 1, 0) : nearest + 1]
        return min(candidates, key=lambda place: (self._num_shared(place), abs(cost_before(place) - target)))
