"""Units: contiguous slices of even cost, cut where little is shared."""

import random

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from planning.prompts import PROMPT_LISTS, token_array

from batchpaged.planning.order import Order, plan_order
from batchpaged.planning.units import (
    DECODE_WEIGHT,
    MAX_ROWS,
    MIN_ROWS,
    UNITS_PER_WORKER,
    WINDOW,
    Unit,
    cut_units,
    rows_per_unit,
)


def grouped_order(rng: random.Random, num_groups: int, group_size: int, num_shared: int, num_own: int) -> Order:
    """Groups of prompts that share `num_shared` tokens, each with about `num_own` of its own."""
    shared, own = [], []
    for _ in range(num_groups):
        size = rng.randint(1, 2 * group_size)
        shared += [0] + [num_shared] * (size - 1)
        own += [num_shared + rng.randint(1, 2 * num_own) for _ in range(size)]
    return Order(np.arange(len(shared)), np.array(own), np.array(shared))


def costs(order: Order, units: list[Unit], max_tokens: int) -> list[float]:
    cost = order.num_tokens - order.num_shared + DECODE_WEIGHT * max_tokens
    return [float(cost[unit.start : unit.end].sum()) for unit in units]


@settings(max_examples=60)
@given(PROMPT_LISTS.map(lambda prompts: prompts * 5), st.integers(1, 100), st.integers(1, 8))
def test_every_row_is_in_exactly_one_unit_in_planned_order(
    prompts: list[list[int]], max_tokens: int, num_workers: int
) -> None:
    order = plan_order(token_array(prompts))
    units = cut_units(order, max_tokens, num_workers)
    assert [row for unit in units for row in range(unit.start, unit.end)] == list(range(len(prompts)))
    assert [unit.index for unit in units] == list(range(len(units)))
    assert all(unit.start < unit.end for unit in units)


@pytest.mark.parametrize("num_workers", [1, 4])
@pytest.mark.parametrize("max_tokens", [1, 32, 500])
@pytest.mark.parametrize("seed", range(8))
def test_units_cost_about_the_same(seed: int, max_tokens: int, num_workers: int) -> None:
    """A cut moves by at most WINDOW of a unit's cost, and then to the next row."""
    order = grouped_order(random.Random(seed), num_groups=200, group_size=6, num_shared=300, num_own=30)
    units = cut_units(order, max_tokens, num_workers)
    cost = costs(order, units, max_tokens)
    mean = sum(cost) / len(cost)
    largest_row = max(costs(order, [Unit(i, i, i + 1) for i in range(len(order))], max_tokens))
    assert max(cost) <= mean * (1 + 2 * WINDOW) + 2 * largest_row
    assert min(cost[:-1]) >= mean * (1 - 2 * WINDOW) - 2 * largest_row
    assert len(units) == -(-len(order) // rows_per_unit(len(order), num_workers))


@pytest.mark.parametrize("seed", range(8))
def test_cuts_are_where_little_is_shared(seed: int) -> None:
    """With groups far smaller than the window a cut has a group's beginning to go to, and goes there."""
    order = grouped_order(random.Random(seed), num_groups=300, group_size=3, num_shared=500, num_own=20)
    units = cut_units(order, max_tokens=32, num_workers=2)
    assert len(units) > 10
    assert [order.num_shared[unit.start] for unit in units] == [0] * len(units)


def test_one_long_group_is_cut_all_the_same() -> None:
    order = Order(np.arange(400), np.full(400, 1000), np.array([0] + [990] * 399))
    units = cut_units(order, max_tokens=32, num_workers=1)
    assert len(units) == 8
    assert max(unit.end - unit.start for unit in units) < 80


def test_one_row_that_costs_as_much_as_all_others() -> None:
    num_tokens = np.array([100] * 50 + [100_000] + [100] * 49)
    units = cut_units(Order(np.arange(100), num_tokens, np.zeros(100, dtype=np.int64)), 32, 1)
    assert [row for unit in units for row in range(unit.start, unit.end)] == list(range(100))


def test_few_rows_are_one_unit() -> None:
    order = Order(np.arange(MIN_ROWS), np.full(MIN_ROWS, 100), np.zeros(MIN_ROWS, dtype=np.int64))
    assert cut_units(order, 32, num_workers=8) == [Unit(0, 0, MIN_ROWS)]


def test_no_rows_are_no_unit() -> None:
    empty = np.zeros(0, dtype=np.int64)
    assert cut_units(Order(empty, empty, empty), 32, 1) == []


@given(st.integers(1, 10**8), st.integers(1, 64))
def test_rows_per_unit_keep_workers_busy_and_a_crash_cheap(num_rows: int, num_workers: int) -> None:
    size = rows_per_unit(num_rows, num_workers)
    assert MIN_ROWS <= size <= MAX_ROWS
    assert size == MIN_ROWS or num_rows / size > UNITS_PER_WORKER * num_workers / 2
