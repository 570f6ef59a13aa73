from hypothesis import given
from hypothesis import strategies as st

from batchpaged.cluster.unit_ranges import UnitRanges


@given(st.lists(st.integers(0, 500), unique=True, max_size=60).map(sorted), st.integers(1, 7), st.data())
def test_every_unit_is_taken_once_whoever_asks(units, num_slots, data):
    ranges, taken = UnitRanges(units, num_slots), []
    while ranges.num_left:
        assert ranges.num_left == len(units) - len(taken)
        taken.append(ranges.take(data.draw(st.integers(0, num_slots - 1))))
    assert sorted(taken) == units
    assert [ranges.take(slot) for slot in range(num_slots)] == [None] * num_slots


@given(st.lists(st.integers(0, 500), unique=True, max_size=60).map(sorted), st.integers(1, 7))
def test_slots_begin_with_even_contiguous_ranges(units, num_slots):
    ranges = UnitRanges(units, num_slots)
    shares = [[ranges.take(slot) for _ in range(len(units) // num_slots)] for slot in range(num_slots)]
    places = [[units.index(unit) for unit in share] for share in shares]
    assert all(place == list(range(place[0], place[-1] + 1)) for place in places if place)
    assert sum(places, []) == sorted(sum(places, []))


def test_a_slot_without_units_takes_the_far_half_of_the_longest_range():
    ranges = UnitRanges(range(12), 3)  # 0-3, 4-7, 8-11
    assert [ranges.take(0) for _ in range(5)] == [0, 1, 2, 3, 6]  # of 4-7, the second half
    assert [ranges.take(0) for _ in range(2)] == [7, 10]
    assert [ranges.take(1), ranges.take(2)] == [4, 8]


def test_the_last_unit_can_be_taken_from_afar():
    ranges = UnitRanges([5], 2)  # it lies with the second slot
    assert ranges.take(0) == 5 and ranges.num_left == 0
