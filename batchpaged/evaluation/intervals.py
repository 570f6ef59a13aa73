"""Confidence intervals of means, by the bootstrap.

Drawing n rows with replacement is drawing how often each distinct value comes: one multinomial draw over the values,
of which scores have few, so that a hundred million rows take as long as a thousand. Rows count as independent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

LEVEL = 0.95
NUM_RESAMPLES = 2000
_MOST_VALUES = 4096  # distinct ones; more are put into so many bins
_DIGITS = 9  # beyond which two scores are the same


@dataclass(frozen=True)
class Estimate:
    mean: float
    low: float  # of the interval
    high: float

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves zero out."""
        return self.low > 0 or self.high < 0


def estimate_mean(values: np.ndarray) -> Estimate | None:
    """Mean and percentile interval; the same for the same values. `values`: [num_rows]; None without any."""
    if len(values) == 0:
        return None
    low, high = _interval(*_distinct(values))
    return Estimate(float(values.mean()), low, high)


def interval_of_counts(counts: Mapping[float, int]) -> tuple[float, float]:
    """(low, high) of the mean, from how often each value comes; of one row at least."""
    values = np.array(sorted(counts))
    return _interval(*_binned(values, np.array([counts[value] for value in values])))


def _interval(values: np.ndarray, counts: np.ndarray) -> tuple[float, float]:
    """(low, high); both arguments [num_values]"""
    num_rows = int(counts.sum())
    draws = np.random.default_rng(0).multinomial(num_rows, counts / num_rows, NUM_RESAMPLES)
    low, high = np.quantile(draws @ values / num_rows, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def _distinct(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(values, how often each comes)"""
    return _binned(*np.unique(np.round(values, _DIGITS), return_counts=True))


def _binned(values: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if len(values) <= _MOST_VALUES:
        return values, counts
    counts, edges = np.histogram(values, _MOST_VALUES, weights=counts)
    return (edges[1:] + edges[:-1]) / 2, counts
