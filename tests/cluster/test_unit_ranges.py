"""Units in contiguous ranges of even cost: each is handed out once, and prefixes are parted seldom."""

import math
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchpaged.cluster.unit_ranges import (
    EVEN_WINDOW,
    MIDDLE_WINDOW,
    Batch,
    CompletionSum,
    OpenRows,
    UnitRanges,
)
from batchpaged.planning.units import Unit

GUESS = 10.0  # tokens per completion
BATCH = Batch(max_sequences=16, max_tokens=100_000)


def unit(index, num_rows=8, prefill=100, decode=80.0, shared=0):
    return Unit(index, index * num_rows, (index + 1) * num_rows, prefill + decode, prefill, shared)


def ranges(units, num_slots, attended=None, batch=BATCH):
    made = UnitRanges(units, num_slots, GUESS, batch)
    made.attend(range(num_slots) if attended is None else attended)
    return made


UNITS = st.lists(
    st.builds(
        lambda rows, prefill, decode, shared: (rows, prefill, float(decode), shared),
        st.integers(1, 40),
        st.integers(0, 500),
        st.integers(0, 500),
        st.integers(0, 300),
    ),
    max_size=40,
).map(lambda facts: [unit(3 * i, *fact) for i, fact in enumerate(facts)])  # some units are done already


class Replay:
    """Takes and finishes units in an order that is drawn; remembers who was given what."""

    def __init__(self, made, units, num_slots):
        self.ranges, self.units = made, {unit.index: unit for unit in units}
        self.given = [[] for _ in range(num_slots)]
        self.in_flight = []

    def take(self, slot):
        index = self.ranges.take(slot)
        if index is not None:
            self.given[slot].append(index)
            self.in_flight.append(index)
        return index

    def finish(self, index, num_tokens_per_row):
        self.in_flight.remove(index)
        num_rows = self.units[index].end - self.units[index].start
        self.ranges.finish(index, CompletionSum(num_rows, num_rows * num_tokens_per_row))

    def num_breaks(self):
        """Units that do not follow, on the same slot, the one before them."""
        indices = sorted(self.units)
        follows = set(pairwise(indices))
        return sum(pair not in follows for given in self.given for pair in pairwise([None, *given]))


def play(data, units, num_slots):
    """Any interleaving, in which every slot asks again and again."""
    replay = Replay(ranges(units, num_slots), units, num_slots)
    while replay.ranges.num_left:
        is_done = replay.in_flight and data.draw(st.booleans())
        if is_done:
            replay.finish(data.draw(st.sampled_from(replay.in_flight)), data.draw(st.integers(0, 30)))
        elif replay.take(data.draw(st.integers(0, num_slots - 1))) is None and not replay.in_flight:
            assert any(replay.take(slot) is not None for slot in range(num_slots)), "nobody is given what is left"
    return replay


@settings(max_examples=200)
@given(UNITS, st.integers(1, 7), st.data())
def test_every_unit_is_handed_out_once_whoever_asks(units, num_slots, data):
    replay = play(data, units, num_slots)
    assert sorted(index for given in replay.given for index in given) == [unit.index for unit in units]
    assert [replay.take(slot) for slot in range(num_slots)] == [None] * num_slots


@settings(max_examples=200)
@given(UNITS, st.integers(1, 7), st.data())
def test_only_cuts_and_steals_part_neighbours(units, num_slots, data):
    replay = play(data, units, num_slots)
    assert replay.num_breaks() <= min(len(units), num_slots + replay.ranges.num_steals)


@settings(max_examples=100)
@given(st.integers(1, 300), st.integers(1, 7), st.integers(0, 2**32), st.data())
def test_ranges_are_halved_so_steals_are_few(num_units, num_slots, seed, data):
    """Each steal halves the costliest range, more or less, so after as many as there are slots all ranges are smaller."""
    random = Random(seed)  # a draw of its own for each unit takes most of the test's time
    units = [unit(i, shared=random.randint(0, 50)) for i in range(num_units)]
    replay = play(data, units, num_slots)
    largest = (1 + 2 * EVEN_WINDOW) * num_units / num_slots + 2
    num_halvings = math.ceil(math.log(largest, 1 / (0.5 + MIDDLE_WINDOW))) + 1
    assert replay.ranges.num_steals <= num_slots * (num_halvings + 1)


# --- first cuts ---


def first_ranges(made, num_slots):
    """Places of the units that each slot has at first."""
    return [list(range(*made._ranges[slot])) for slot in range(num_slots)]


@given(UNITS, st.integers(1, 7))
def test_first_ranges_are_contiguous_and_cost_about_the_same(units, num_slots):
    shares = first_ranges(ranges(units, num_slots), num_slots)
    assert sum(shares, []) == list(range(len(units)))
    total, largest = sum(u.cost for u in units), max((u.cost for u in units), default=0)
    for share in shares:
        cost = sum(units[place].cost for place in share)
        assert abs(cost - total / num_slots) <= 2 * (EVEN_WINDOW * total / num_slots + largest) + 1e-6


def test_ranges_are_of_even_cost_not_of_even_count():
    units = [unit(i, prefill=900 if i < 10 else 100, decode=0.0) for i in range(100)]
    assert [len(share) for share in first_ranges(ranges(units, 2), 2)] == [10, 90]


def test_first_cuts_are_where_least_is_shared():
    units = [unit(i, shared=0 if i in (41, 82) else 300) for i in range(120)]
    assert [len(share) for share in first_ranges(ranges(units, 3), 3)] == [41, 41, 38]


# --- steals ---


def used_up(units, *, slots=2):
    """Two slots and more: the first ones have what they were given behind them."""
    made = ranges(units, slots)
    made._ranges = [(0, 0)] * (slots - 1) + [(0, len(units))]
    return made


def test_a_slot_without_units_takes_the_far_half_by_cost():
    units = [unit(i, prefill=1000 if i < 2 else 100, decode=0.0) for i in range(22)]  # 2,000 and then 2,000
    assert used_up(units).take(0) == 2


def test_the_middle_moves_to_where_less_is_shared():
    units = [unit(i, shared=5 if i == 13 else 150) for i in range(20)]
    assert used_up(units).take(0) == 13


def test_the_costliest_range_is_taken_from_not_the_longest():
    units = [unit(i, prefill=100 if i < 30 else 2000, decode=0.0) for i in range(40)]
    made = ranges(units, 3)
    made._ranges = [(0, 0), (0, 30), (30, 40)]
    assert made.take(0) == 35


def test_a_steal_that_loses_more_than_it_wins_is_refused():
    worth, worthless = ([unit(i, shared=shared) for i in range(2)] for shared in (50, 150))
    assert used_up(worth).take(0) == 1
    assert used_up(worthless).take(0) is None  # 180 would move, 150 be lost: 30 are won
    assert used_up(worthless).take(1) == 0


def test_the_last_unit_is_left_to_its_slot_but_not_to_a_slot_without_a_worker():
    made = used_up([unit(0, shared=50)])
    assert made.take(0) is None
    made.attend([0])
    assert made.take(0) == 0 and made.num_left == 0


def test_a_slot_whose_engine_has_much_to_do_takes_nothing():
    made = ranges([unit(i) for i in range(8)], 2)
    assert [made.take(0) for _ in range(4)] == [0, 1, 2, 3]
    assert made.take(0) is None  # as much as the other slot has left waits here
    made.report(0, OpenRows(num_begun=32, num_ended=0))
    assert made.take(0) == 6


def test_units_of_rows_without_a_prompt_are_handed_out_as_well():
    units = [Unit(i, 1000 * i, 1000 * i + 1000, 0.0, 0, 0) for i in range(4)]
    made, given = ranges(units, 2), []
    for _ in range(4):
        for index in [*made.hand_out(0), *made.hand_out(1)]:
            given.append(index)
            made.finish(index, CompletionSum(0, 0))
    assert sorted(given) == [0, 1, 2, 3]


# --- what is in flight ---


def test_a_slot_is_given_enough_rows_for_its_batch_and_more_as_they_end():
    made = ranges([unit(i) for i in range(100)], 1)
    num_units = 4  # of 8 rows: a batch of 16, and as many again
    assert list(made.hand_out(0)) == list(range(num_units))
    assert list(made.hand_out(0)) == []
    made.report(0, OpenRows(num_begun=16, num_ended=8))
    assert list(made.hand_out(0)) == [num_units]


def test_a_slot_is_given_two_units_beyond_a_batch_however_small_that_is():
    made = ranges([unit(i, num_rows=40) for i in range(100)], 1)
    assert list(made.hand_out(0)) == [0, 1, 2]  # 96 rows at least


def test_rows_of_long_prompts_are_given_fewer_at_a_time():
    units = [unit(i, prefill=10_000) for i in range(100)]
    made = ranges(units, 1, batch=Batch(max_sequences=10_000, max_tokens=1_000))
    assert list(made.hand_out(0)) == [0, 1]  # 20,160 tokens wait, more than 16 steps


def test_near_the_end_what_waits_is_small_beside_what_is_left():
    made = ranges([unit(i) for i in range(8)], 2, batch=Batch(max_sequences=10_000, max_tokens=100_000))
    assert list(made.hand_out(0)) == [0, 1]  # 360 wait; of the 1,080 that are left a slot has 540


def test_a_lone_slot_is_given_all_that_its_batch_holds():
    made = ranges([unit(i) for i in range(8)], 1, batch=Batch(max_sequences=10_000, max_tokens=100_000))
    assert list(made.hand_out(0)) == list(range(8))


# --- completion lengths ---


def test_the_length_of_completions_is_learned():
    made = ranges([unit(i) for i in range(10)], 1)
    assert made.completion_guess == GUESS
    for index, num_tokens in enumerate((80, 240)):
        made.take(0)
        made.finish(index, CompletionSum(8, num_tokens))
    assert made.completion_guess == 20.0
    made.take(0)
    made.finish(2, CompletionSum(0, 0))  # all its rows were refused
    assert made.completion_guess == 20.0


@pytest.mark.parametrize(("num_tokens", "first_stolen"), [(0, 2), (800, 10)])
def test_what_is_learned_decides_where_the_middle_is(num_tokens, first_stolen):
    """First units that prefill much, then units that decode much: the middle is where most of the time goes."""
    units = [unit(0), *(unit(i, prefill=10 if i > 1 else 1000, decode=100.0) for i in range(1, 20))]
    made = ranges(units, 2)
    assert made.take(0) == 0
    made.finish(0, CompletionSum(8, num_tokens))
    made._ranges = [(0, 0), (1, 20)]
    assert made.take(0) == first_stolen
