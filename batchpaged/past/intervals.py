"""Confidence intervals of means, by the bootstrap.

Drawing n rows with replacement is drawing how often each distinct value comes: one multinomial draw over the values,
of which scores have few, so that a hundred million rows take as long as a thousand. Rows count as independent.
"""

from __future__ import annotations

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
    distinct, counts = _distinct(values)
    draws = np.random.default_rng(0).multinomial(len(values), counts / counts.sum(), NUM_RESAMPLES)
    low, high = np.quantile(draws @ distinct / len(values), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(float(values.mean()), float(low), float(high))


def _distinct(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(values, how often each comes)"""
    distinct, counts = np.unique(np.round(values, _DIGITS), return_counts=True)
    if len(distinct) <= _MOST_VALUES:
        return distinct, counts
    counts, edges = np.histogram(values, _MOST_VALUES)
    return (edges[1:] + edges[:-1]) / 2, counts
