"""Answer metrics over a whole run, batch by batch.

- A metric is a mean over rows, a fraction from 0 to 1 (SQuAD's own script prints percent).
- A row counts when it has a reference that is not blank; `num_evaluated` says how many do.
- A failed row, or one whose completion is null, counts as 0: leaving it out would reward failing on hard rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from batchpaged.errors import ConfigError, InputError
from batchpaged.evaluation.squad import METRICS

NUM_EVALUATED = "num_evaluated"
_NO_COMPLETION = frozenset({"failed"})
_BATCH_ROWS = 10_000  # rows turned into Python objects at a time

Column = pa.Array | pa.ChunkedArray | Sequence[Any]


def evaluate(
    completions: Column, references: Column, statuses: Column, metrics: Sequence[str]
) -> dict[str, float | None]:
    """Metric -> mean, and num_evaluated; see Evaluator."""
    evaluator = Evaluator(metrics)
    evaluator.add(completions, references, statuses)
    return evaluator.result()


def check_references(name: str, kind: pa.DataType) -> None:
    """Raises InputError unless the column can hold references: a string or a list of strings."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    item = kind.value_type if _is_list(kind) else kind
    if not (pa.types.is_string(item) or pa.types.is_large_string(item) or pa.types.is_null(item)):
        raise InputError(f"evaluate.references: column {name!r} is {kind}; it must be string or list<string>")


class Evaluator:
    """Sums of scores. Parts of a run may be evaluated apart, in any order, and merged."""

    def __init__(self, metrics: Sequence[str]) -> None:
        unknown = [name for name in metrics if name not in METRICS]
        if unknown:
            raise ConfigError(f"evaluate.metrics: {unknown[0]!r} is not one of {', '.join(METRICS)}")
        self._sums = dict.fromkeys(metrics, 0.0)
        self._num_evaluated = 0

    def add(self, completions: Column, references: Column, statuses: Column) -> None:
        """Adds rows: completion (string or null), references (string, list of strings or null), status."""
        lengths = {len(completions), len(references), len(statuses)}
        if len(lengths) != 1:
            raise ValueError(f"columns of different lengths: {sorted(lengths)}")
        for completion, accepted, status in zip(_values(completions), _values(references), _values(statuses)):
            self._add_row(None if status in _NO_COMPLETION else completion, usable_references(accepted))

    def merge(self, other: Evaluator) -> None:
        """Adds another evaluator's rows. Both must have the same metrics."""
        if self._sums.keys() != other._sums.keys():
            raise ValueError(f"cannot merge {list(other._sums)} into {list(self._sums)}")
        for name, total in other._sums.items():
            self._sums[name] += total
        self._num_evaluated += other._num_evaluated

    def result(self) -> dict[str, float | None]:
        """Means as fractions, None where no row has a reference, and num_evaluated."""
        count = self._num_evaluated
        means = {name: total / count if count else None for name, total in self._sums.items()}
        return {**means, NUM_EVALUATED: count}

    def _add_row(self, completion: str | None, references: list[str]) -> None:
        if not references:
            return
        self._num_evaluated += 1
        if completion is not None:
            for name in self._sums:
                self._sums[name] += METRICS[name](completion, references)


def usable_references(accepted: str | Iterable[str | None] | None) -> list[str]:
    """References that say something: null and blank ones do not."""
    candidates = [accepted] if isinstance(accepted, str) else accepted or []
    return [text for text in candidates if text is not None and text.strip()]


def _values(column: Column) -> Iterator[Any]:
    """Python values, a few thousand at a time."""
    if not isinstance(column, (pa.Array, pa.ChunkedArray)):
        yield from column
        return
    for start in range(0, len(column), _BATCH_ROWS):
        yield from column.slice(start, _BATCH_ROWS).to_pylist()


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
