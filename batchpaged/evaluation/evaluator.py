"""Metrics over a whole run, batch by batch.

- A metric is a mean over rows; those that come with batchpaged are fractions from 0 to 1 (SQuAD's own script prints percent).
- A row counts for a metric of answers when it has a reference that is not blank, and for one of contexts when it has a gold
  context; `num_evaluated` says how many rows count for any.
- A failed row, or one whose completion is null, counts as 0: leaving it out would reward failing on hard rows. Contexts
  are there whether the model's part failed or not.
- Of several completions of a row, the mean counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from batchpaged.dataset.cells import column_values
from batchpaged.errors import InputError, RowError
from batchpaged.evaluation.metrics import NUM_EVALUATED, EvaluatedRow, Metric, MetricFailed, NoVerdict, make_metrics
from batchpaged.evaluation.tally import Tally

NO_VERDICT = "no verdict"  # of a judge: the row does not count
_NO_COMPLETION = frozenset({"failed"})
_BATCH_ROWS = 10_000  # rows turned into Python objects at a time

Column = pa.Array | pa.ChunkedArray | Sequence[Any]
Scores = dict[str, list[float | None]]  # metric -> a score for each row; None where the row does not count


def evaluate(
    completions: Column, references: Column, statuses: Column, metrics: Sequence[str]
) -> dict[str, float | None]:
    """Metric -> mean, and num_evaluated; see Evaluator."""
    evaluator = Evaluator(make_metrics(metrics))
    evaluator.add(completions, statuses, references)
    return evaluator.result()


def check_references(name: str, kind: pa.DataType, key: str = "evaluate.references") -> None:
    """Raises InputError unless the column can hold references, or contexts: a string or a list of strings."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    item = kind.value_type if _is_list(kind) else kind
    if not (pa.types.is_string(item) or pa.types.is_large_string(item) or pa.types.is_null(item)):
        raise InputError(f"{key}: column {name!r} is {kind}; it must be string or list<string>")


class Evaluator:
    """Tallies of scores. Parts of a run may be evaluated apart, in any order, and merged."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = tuple(metrics)
        self._tallies = {metric.name: Tally() for metric in metrics}
        self._num_evaluated = 0

    def add(
        self,
        completions: Column,
        statuses: Column,
        references: Column | None = None,
        contexts: Column | None = None,
        gold_contexts: Column | None = None,
        rows: Iterable[Mapping[str, Any]] | None = None,
    ) -> Scores:
        """Adds rows, and gives their scores: completion (string, list of strings or null), status, references and contexts
        (string, list of strings or null), and all columns where a user's metric needs them."""
        columns = [completions, statuses, *(column for column in (references, contexts, gold_contexts) if column is not None)]
        lengths = {len(column) for column in columns}
        if len(lengths) != 1:
            raise ValueError(f"columns of different lengths: {sorted(lengths)}")
        scores: Scores = {metric.name: [] for metric in self._metrics}
        per_row = zip(
            _values(completions),
            _values(statuses),
            *(_texts(column, len(completions)) for column in (references, contexts, gold_contexts)),
            rows if rows is not None else ({} for _ in range(len(completions))),
            strict=True,
        )
        for completion, status, *texts, values in per_row:
            answers = _completions(None if status in _NO_COMPLETION else completion)
            self._add_row([EvaluatedRow(answer, *texts, values=values) for answer in answers], scores)
        return scores

    def merge(self, other: Evaluator) -> None:
        """Adds another evaluator's rows. Both must have the same metrics."""
        if self._tallies.keys() != other._tallies.keys():
            raise ValueError(f"cannot merge {list(other._tallies)} into {list(self._tallies)}")
        for name, tally in other._tallies.items():
            self._tallies[name].merge(tally)
        self._num_evaluated += other._num_evaluated

    def result(self) -> dict[str, float | None]:
        """Means, None where no row counts, and num_evaluated."""
        return {**{name: tally.mean() for name, tally in self._tallies.items()}, NUM_EVALUATED: self._num_evaluated}

    def details(self) -> dict[str, dict[str, Any]]:
        """Metric -> {low, high, num_rows, errors}; see Tally."""
        return {name: tally.details() for name, tally in self._tallies.items()}

    def _add_row(self, answers: list[EvaluatedRow], scores: Scores) -> None:
        """One EvaluatedRow for each completion of the row."""
        counts = False
        for metric in self._metrics:
            score = self._score(metric, answers)
            scores[metric.name].append(score)
            if score is not None:
                self._tallies[metric.name].add(score)
                counts = True
        self._num_evaluated += counts

    def _score(self, metric: Metric, answers: list[EvaluatedRow]) -> float | None:
        try:
            found = [metric.score(answer) for answer in answers]
        except MetricFailed as error:
            self._tallies[metric.name].errors[str(error)] += 1
            return 0.0
        except NoVerdict:
            self._tallies[metric.name].errors[NO_VERDICT] += 1
            return None
        return None if None in found else sum(found) / len(found)  # whether a row counts no completion decides


def usable_references(accepted: str | Iterable[str | None] | None) -> list[str]:
    """References that say something: null and blank ones do not."""
    candidates = [accepted] if isinstance(accepted, str) else accepted or []
    return [text for text in candidates if text is not None and text.strip()]


def _completions(completion: str | Sequence[str] | None) -> Sequence[str | None]:
    return completion or (None,) if isinstance(completion, (list, tuple)) else (completion,)


def _texts(column: Column | None, num_rows: int) -> Iterator[list[str]]:
    return iter([[]] * num_rows) if column is None else map(usable_references, _values(column))


def _values(column: Column) -> Iterator[Any]:
    """Python values, a few thousand at a time; what Python cannot hold is None."""
    if not isinstance(column, (pa.Array, pa.ChunkedArray)):
        yield from column
        return
    for start in range(0, len(column), _BATCH_ROWS):
        yield from readable_values(column.slice(start, _BATCH_ROWS))


def readable_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Python values; what Python cannot hold, such as a date past the year 9999, is None."""
    return [None if isinstance(value, RowError) else value for value in column_values(column, "")]


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
