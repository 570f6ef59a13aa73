"""Distributions over rows, exact, from one pass of whole-column counting."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from batchpaged.report.rows import batches_that_ran, values_of

MOST_BINS = 40
NUM_FRACTION_BINS = 20


@dataclass(frozen=True)
class Lengths:
    """How many rows, or completions, have each length: `counts[n]` are n tokens long."""

    counts: np.ndarray  # [longest + 1] int64

    @property
    def num_rows(self) -> int:
        return int(self.counts.sum())

    @property
    def longest(self) -> int:
        return len(self.counts) - 1

    def quantile(self, share: float) -> int:
        """The smallest length that at least `share` of the rows do not exceed."""
        return int(np.searchsorted(np.cumsum(self.counts), max(1.0, share * self.num_rows)))


@dataclass(frozen=True)
class Bins:
    """A histogram: bin i covers edges[i] up to, but not including, edges[i + 1]."""

    edges: np.ndarray  # [num_bins + 1]
    counts: np.ndarray  # [num_bins] rows


@dataclass(frozen=True)
class CachedFractions:
    """Per row, cached prompt tokens over prompt tokens."""

    bins: Bins  # NUM_FRACTION_BINS equal bins; the last includes 1
    num_without_hit: int  # rows that computed their whole prompt


def count_lengths(rows: pa.Table, column: str) -> Lengths:
    counts = np.zeros(0, dtype=np.int64)
    for batch in batches_that_ran(rows):
        values = values_of(batch, column).drop_null().to_numpy(zero_copy_only=False)
        more = np.bincount(values.astype(np.int64, copy=False), minlength=len(counts))
        more[: len(counts)] += counts
        counts = more
    return Lengths(counts)


def bin_lengths(lengths: Lengths) -> Bins:
    """At most MOST_BINS bins of one round width, from the shortest row to the longest."""
    shortest = int(np.flatnonzero(lengths.counts)[0])
    width = _round_width(lengths.longest - shortest + 1)
    first = shortest // width * width
    edges = np.arange(first, lengths.longest + width + 1, width)
    totals = np.concatenate([[0], np.cumsum(lengths.counts)])
    return Bins(edges, np.diff(totals[np.minimum(edges, len(totals) - 1)]))


def count_cached_fractions(rows: pa.Table) -> CachedFractions:
    counts, num_without_hit = np.zeros(NUM_FRACTION_BINS, dtype=np.int64), 0
    for batch in batches_that_ran(rows):
        prompt, cached = _int64(batch, "prompt_tokens"), _int64(batch, "cached_tokens")
        prompt, cached = prompt[prompt > 0], cached[prompt > 0]
        index = np.clip(cached * NUM_FRACTION_BINS // prompt, 0, NUM_FRACTION_BINS - 1)
        counts += np.bincount(index, minlength=NUM_FRACTION_BINS)
        num_without_hit += int(np.count_nonzero(cached == 0))
    return CachedFractions(Bins(np.linspace(0.0, 1.0, NUM_FRACTION_BINS + 1), counts), num_without_hit)


def _int64(batch: pa.RecordBatch, column: str) -> np.ndarray:
    return batch[column].fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)


def _round_width(span: int) -> int:
    """The smallest of 1, 2, 5, 10, 20, 50 ... that cuts `span` lengths into fewer than MOST_BINS bins."""
    magnitude = 1
    while True:
        for step in (1, 2, 5):
            if span <= step * magnitude * (MOST_BINS - 1):
                return step * magnitude
        magnitude *= 10
