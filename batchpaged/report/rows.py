"""Totals over the row table, batch by batch: a hundred million rows never become Python objects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

BATCH_ROWS = 1 << 20


@dataclass(frozen=True)
class RowTotals:
    """Counts of rows by outcome, and token sums over the rows that ran (status ok or truncated)."""

    num_rows: int
    num_failed: int
    num_truncated: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    finish_reasons: dict[str, int]

    @property
    def num_succeeded(self) -> int:
        return self.num_rows - self.num_failed


def batches(rows: pa.Table) -> Iterator[pa.RecordBatch]:
    """Slices of the table without copying."""
    return iter(rows.to_batches(max_chunksize=BATCH_ROWS))


def batches_that_ran(rows: pa.Table) -> Iterator[pa.RecordBatch]:
    """Only rows with a completion; a failed row's counts, if it has any, describe nothing that was computed."""
    return (batch.filter(pc.not_equal(batch["status"], "failed")) for batch in batches(rows))


def values_of(batch: pa.RecordBatch, column: str) -> pa.Array:
    """Of all completions, where rows have several."""
    values = batch[column]
    return pc.list_flatten(values) if pa.types.is_list(values.type) else values


def sum_rows(rows: pa.Table) -> RowTotals:
    statuses = _value_counts(batches(rows), "status")
    return RowTotals(
        num_rows=rows.num_rows,
        num_failed=statuses["failed"],
        num_truncated=statuses["truncated"],
        prompt_tokens=_sum(rows, "prompt_tokens"),
        cached_tokens=_sum(rows, "cached_tokens"),
        completion_tokens=_sum(rows, "completion_tokens"),
        finish_reasons={"stop": 0, "length": 0, **_value_counts(batches_that_ran(rows), "finish_reason")},
    )


def _sum(rows: pa.Table, column: str) -> int:
    return sum(pc.sum(values_of(batch, column)).as_py() or 0 for batch in batches_that_ran(rows))


def _value_counts(parts: Iterator[pa.RecordBatch], column: str) -> Counter[str]:
    """How often each value occurs; nulls are not counted."""
    counts: Counter[str] = Counter()
    for batch in parts:
        for entry in pc.value_counts(values_of(batch, column).drop_null()).to_pylist():
            counts[entry["values"]] += entry["counts"]
    return counts
