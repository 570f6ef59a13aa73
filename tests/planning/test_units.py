"""Units: contiguous slices of even cost, cut where little is shared."""

import random

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from planning.prompts import PROMPT_LISTS, token_array

from batchpaged.planning.cost import CostModel
from batchpaged.planning.order import Order, plan_order
from batchpaged.planning.units import (
    MAX_ROWS,
    MIN_ROWS,
    ROW_LIMIT,
    UNITS_PER_WORKER,
    WINDOW,
    Unit,
    UnitSize,
    cut_slice,
    cut_units,
    rows_per_unit,
)

COST = CostModel(num_decode_tokens=32, is_greedy=True)


def grouped_order(rng: random.Random, num_groups: int, group_size: int, num_shared: int, num_own: int) -> Order:
    """Groups of prompts that share `num_shared` tokens, each with about `num_own` of its own."""
    shared, own = [], []
    for _ in range(num_groups):
        size = rng.randint(1, 2 * group_size)
        shared += [0] + [num_shared] * (size - 1)
        own += [num_shared + rng.randint(1, 2 * num_own) for _ in range(size)]
    return Order(np.arange(len(shared)), np.array(own), np.array(shared))


def check(units: list[Unit], order: Order, model: CostModel) -> None:
    """Each row is in exactly one unit, in planned order, and units say what their rows are."""
    assert [row for unit in units for row in range(unit.start, unit.end)] == list(range(len(order)))
    assert [unit.index for unit in units] == list(range(len(units)))
    costs = model.costs(order.num_tokens, order.num_shared)
    num_prefilled = model.num_prefilled(order.num_tokens, order.num_shared)
    for unit in units:
        assert unit.cost == pytest.approx(costs[unit.start : unit.end].sum(), abs=0.06)
        assert unit.num_prefilled == num_prefilled[unit.start : unit.end].sum()
        assert unit.num_shared == order.num_shared[unit.start]


@settings(max_examples=100)
@given(
    PROMPT_LISTS.map(lambda prompts: prompts * 5), st.floats(0, 100), st.booleans(), st.integers(1, 8), st.floats(0, 1)
)
def test_every_row_is_in_exactly_one_unit_in_planned_order(
    prompts: list[list[int]], num_decode_tokens: float, is_greedy: bool, num_workers: int, attention: float
) -> None:
    order = plan_order(token_array(prompts))
    model = CostModel(num_decode_tokens, is_greedy, attention=attention)
    check(cut_units(order, model, num_workers), order, model)


@settings(max_examples=200)
@given(PROMPT_LISTS.map(lambda prompts: prompts * 5), st.floats(0.1, 300), st.integers(1, 20), st.booleans())
def test_equal_prompts_stay_together_as_long_as_a_unit_may_be(
    prompts: list[list[int]], cost: float, max_rows: int, is_greedy: bool
) -> None:
    order = plan_order(token_array(prompts))
    model = CostModel(4, is_greedy)
    units = cut_slice(order, model, UnitSize(cost, max_rows))
    check(units, order, model)
    ordered = [prompts[i] for i in order.rows]
    for unit in units:
        assert unit.end - unit.start <= max_rows
        if unit.start and ordered[unit.start - 1] == ordered[unit.start]:
            before = units[unit.index - 1]
            assert before.end - before.start == max_rows, "cut among equal prompts, with room left"
            assert all(prompt == ordered[unit.start] for prompt in ordered[before.start : before.end])


@pytest.mark.parametrize("num_workers", [1, 4])
@pytest.mark.parametrize("max_tokens", [1, 32, 500])
@pytest.mark.parametrize("seed", range(8))
def test_units_cost_about_the_same(seed: int, max_tokens: int, num_workers: int) -> None:
    """A cut moves by at most WINDOW of a unit's cost, and then to the next row."""
    order = grouped_order(random.Random(seed), num_groups=200, group_size=6, num_shared=300, num_own=30)
    model = CostModel(max_tokens, True)
    units = cut_units(order, model, num_workers)
    cost = [unit.cost for unit in units]
    mean = sum(cost) / len(cost)
    largest_row = model.costs(order.num_tokens, order.num_shared).max()
    assert max(cost) <= mean * (1 + 2 * WINDOW) + 2 * largest_row
    assert min(cost) >= mean * (1 - 2 * WINDOW) - 2 * largest_row
    assert len(units) == -(-len(order) // rows_per_unit(len(order), num_workers))


@pytest.mark.parametrize("seed", range(8))
def test_cuts_are_where_little_is_shared(seed: int) -> None:
    """With groups far smaller than the window a cut has a group's beginning to go to, and goes there."""
    order = grouped_order(random.Random(seed), num_groups=300, group_size=3, num_shared=500, num_own=20)
    units = cut_units(order, COST, num_workers=2)
    assert len(units) > 10
    assert [unit.num_shared for unit in units] == [0] * len(units)


def test_duplicates_make_units_longer_and_not_dearer() -> None:
    """Every second prompt stands there 50 times."""
    num_tokens = np.full(51 * 200, 100)
    shared = np.tile(np.array([20, 20, *[100] * 49]), 200)
    order = Order(np.arange(len(shared)), num_tokens, shared)
    units = cut_units(order, COST, num_workers=1)
    check(units, order, COST)
    assert max(unit.cost for unit in units) < 2 * min(unit.cost for unit in units)
    assert all(shared[unit.start] == 20 for unit in units)


def test_rows_that_cost_nothing_are_cut_by_their_number() -> None:
    num_rows = 10 * ROW_LIMIT * MAX_ROWS
    num_tokens = np.full(num_rows, 30)
    order = Order(np.arange(num_rows), num_tokens, np.array([0] + [30] * (num_rows - 1)))
    units = cut_units(order, COST, num_workers=1)
    assert [unit.end - unit.start for unit in units] == [ROW_LIMIT * MAX_ROWS] * 10


def test_one_long_group_is_cut_all_the_same() -> None:
    order = Order(np.arange(400), np.full(400, 1000), np.array([0] + [990] * 399))
    units = cut_units(order, COST, num_workers=1)
    assert len(units) == 400 // MIN_ROWS
    assert max(unit.end - unit.start for unit in units) < 2 * MIN_ROWS


def test_one_row_that_costs_as_much_as_all_others() -> None:
    num_tokens = np.array([100] * 50 + [100_000] + [100] * 49)
    order = Order(np.arange(100), num_tokens, np.zeros(100, dtype=np.int64))
    check(cut_units(order, COST, 1), order, COST)


def test_few_rows_are_one_unit() -> None:
    order = Order(np.arange(MIN_ROWS), np.full(MIN_ROWS, 100), np.zeros(MIN_ROWS, dtype=np.int64))
    (unit,) = cut_units(order, COST, num_workers=8)
    assert (unit.start, unit.end) == (0, MIN_ROWS)


def test_no_rows_are_no_unit() -> None:
    empty = np.zeros(0, dtype=np.int64)
    assert cut_units(Order(empty, empty, empty), COST, 1) == []


@given(st.integers(1, 10**8), st.integers(1, 64))
def test_rows_per_unit_keep_workers_busy_and_a_crash_cheap(num_rows: int, num_workers: int) -> None:
    size = rows_per_unit(num_rows, num_workers)
    assert MIN_ROWS <= size <= MAX_ROWS
    assert size == MIN_ROWS or num_rows / size > UNITS_PER_WORKER * num_workers / 2
