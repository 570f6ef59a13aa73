"""Cuts the planned order into units: contiguous slices of about even cost, cut where little is shared."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from batchpaged.planning.cost import CostModel
from batchpaged.planning.order import Order

MIN_ROWS = 16
MAX_ROWS = 512  # on average
ROW_LIMIT = 4  # times the average: the most rows of a unit, however little they cost
UNITS_PER_WORKER = 32  # enough to even out workers, and to lose little on a crash
WINDOW = 0.25  # of a unit's cost: how far a cut may move to a cheaper place


@dataclass(frozen=True)
class Unit:
    """Rows [start, end) of the planned order: what one task computes and commits."""

    index: int
    start: int
    end: int
    cost: float  # in prefilled tokens, see cost.py
    num_prefilled: int  # prompt tokens computed at best, if the engine comes from the unit before
    num_shared: int  # of its first row with the row before it: what is computed again if the engine does not


@dataclass(frozen=True)
class UnitSize:
    """How large units are to be."""

    cost: float  # aimed at
    max_rows: int


def rows_per_unit(num_rows: int, num_workers: int) -> int:
    return int(np.clip(-(-num_rows // (num_workers * UNITS_PER_WORKER)), MIN_ROWS, MAX_ROWS))


def unit_size(num_rows: int, cost: float, num_workers: int) -> UnitSize:
    """For a data set of so many rows that have a prompt, and their cost in total."""
    rows = rows_per_unit(num_rows, num_workers)
    return UnitSize(cost / max(1, -(-num_rows // rows)), ROW_LIMIT * rows)


def cut_units(order: Order, model: CostModel, num_workers: int) -> list[Unit]:
    """Units of a data set whose order is in memory."""
    total = float(model.costs(order.num_tokens, order.num_shared).sum())
    return cut_slice(order, model, unit_size(len(order), total, num_workers))


def cut_slice(order: Order, model: CostModel, size: UnitSize) -> list[Unit]:
    """Units of consecutive rows: each row is in exactly one. They are numbered from 0, and start at row 0."""
    if len(order) == 0:
        return []
    costs = model.costs(order.num_tokens, order.num_shared)
    num_prefilled = model.num_prefilled(order.num_tokens, order.num_shared)
    bounds = list(_bounds(order, costs, size))
    sums = (np.add.reduceat(values, bounds[:-1]).tolist() for values in (costs, num_prefilled))
    shared = order.num_shared[bounds[:-1]].tolist()
    facts = zip(bounds[:-1], bounds[1:], *sums, shared, strict=True)
    return [Unit(i, a, b, round(cost, 1), prefilled, n) for i, (a, b, cost, prefilled, n) in enumerate(facts)]


def _bounds(order: Order, costs: np.ndarray, size: UnitSize) -> Iterator[int]:
    """Where units begin, and the end."""
    # Not between equal prompts, which are computed once if they meet.
    places = np.flatnonzero(order.num_shared < order.num_tokens)
    places = places[places > 0]
    bounds = [0, *_even_cuts(order.num_shared, places, np.cumsum(costs), size.cost), len(order)]
    for start, end in zip(bounds[:-1], bounds[1:], strict=True):
        yield from _within_rows(start, end, places, order.num_shared, size.max_rows)
    yield len(order)


def _even_cuts(num_shared: np.ndarray, places: np.ndarray, done: np.ndarray, unit_cost: float) -> list[int]:
    """Cuts that make units of about this cost: near each even one, the place that shares least with its predecessor."""
    num_units = round(done[-1] / unit_cost) if unit_cost else 1
    if num_units < 2 or len(places) == 0:
        return []
    unit_cost = done[-1] / num_units
    targets = unit_cost * np.arange(1, num_units)
    before = done[places - 1]  # cost of all rows before the place
    low, high = np.searchsorted(before, [targets - WINDOW * unit_cost, targets + WINDOW * unit_cost])
    nearest = np.minimum(np.searchsorted(before, targets), len(places) - 1)
    cuts = {
        places[a + num_shared[places[a:b]].argmin()] if a < b else places[other]
        for a, b, other in zip(low, high, nearest, strict=True)
    }
    return sorted(int(cut) for cut in cuts)


def _within_rows(start: int, end: int, places: np.ndarray, num_shared: np.ndarray, max_rows: int) -> Iterator[int]:
    """Beginnings of units from `start`, no longer than `max_rows`; a longer run of equal prompts is cut in itself."""
    yield start
    while end - start > max_rows:
        first, middle, last = np.searchsorted(places, [start, start + max_rows // 2, start + max_rows], side="right")
        if middle < last:
            start = int(places[middle + num_shared[places[middle:last]].argmin()])
        else:
            start = int(places[last - 1]) if first < last else start + max_rows
        yield start
