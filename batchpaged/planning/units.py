"""Cuts the planned order into units: contiguous slices of about even cost, cut where little is shared."""

from dataclasses import dataclass

import numpy as np

from batchpaged.planning.order import Order

# A decoded token costs about this many prefilled ones (it also needs logits, and attention reads the cache for it alone).
DECODE_WEIGHT = 1.3
MIN_ROWS = 16
MAX_ROWS = 512
UNITS_PER_WORKER = 8  # enough to even out workers and to lose little on a crash
WINDOW = 0.25  # of a unit's cost: how far a cut may move to a cheaper place


@dataclass(frozen=True)
class Unit:
    """Rows [start, end) of the planned order: what one task computes and commits."""

    index: int
    start: int
    end: int


def rows_per_unit(num_rows: int, num_workers: int) -> int:
    return int(np.clip(-(-num_rows // (num_workers * UNITS_PER_WORKER)), MIN_ROWS, MAX_ROWS))


def cut_units(order: Order, max_tokens: int, num_workers: int) -> list[Unit]:
    """Each row is in exactly one unit; units are in planned order."""
    if len(order) == 0:
        return []
    num_units = -(-len(order) // rows_per_unit(len(order), num_workers))
    cost = order.num_tokens - order.num_shared + DECODE_WEIGHT * max_tokens
    done = np.cumsum(cost)
    targets = done[-1] * np.arange(1, num_units) / num_units
    reach = WINDOW * done[-1] / num_units
    cuts = sorted({_cheapest_cut(order.num_shared, done, target, reach) for target in targets} - {0, len(order)})
    bounds = [0, *cuts, len(order)]
    return [Unit(i, start, end) for i, (start, end) in enumerate(zip(bounds[:-1], bounds[1:], strict=True))]


def _cheapest_cut(num_shared: np.ndarray, done: np.ndarray, target: float, reach: float) -> int:
    """The first row of the next unit: the one near `target` that shares least with its predecessor."""
    low, high = np.searchsorted(done, [target - reach, target + reach])
    candidates = num_shared[low + 1 : high + 2]
    return int(low + 1 + candidates.argmin()) if len(candidates) else len(num_shared)
