"""The metrics of a pipeline over the output of its run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from batchpaged.atomic import replacing
from batchpaged.evaluation.evaluator import Evaluator, readable_values, usable_references
from batchpaged.evaluation.metrics import Metric, make_metrics
from batchpaged.evaluation.own_metrics import load_own_metric, try_own_metric

if TYPE_CHECKING:
    from batchpaged.config import EvaluateConfig
    from batchpaged.dataset.source import Source

_BATCH_ROWS = 10_000


@dataclass(frozen=True)
class Evaluation:
    values: dict[str, float | None]  # metric -> mean, and num_evaluated
    details: dict[str, dict[str, Any]]  # metric -> {low, high, num_rows, errors}


def metrics_of(evaluate: EvaluateConfig) -> tuple[Metric, ...]:
    """Loads the user's own. Raises ConfigError."""
    return make_metrics(evaluate.specs, evaluate.metrics_folder, evaluate.references is not None, evaluate.judge)


def try_on_first_row(evaluate: EvaluateConfig, source: Source, added: Mapping[str, Any]) -> None:
    """A user's metric that fails for the first row of the input would fail for all. Raises ConfigError.

    `added`: what the row could have in the columns that the input lacks.
    """
    own = [spec for spec in evaluate.specs if ":" in spec]
    if not own:
        return
    row = _rows(next(source.iter_tables(source.parts[0])).slice(0, 1))[0]
    row |= added
    references = usable_references(row[evaluate.references]) if evaluate.references else []
    for spec in own:
        try_own_metric(spec, load_own_metric(spec, evaluate.metrics_folder), references, row)


def evaluate_output(files: Sequence[Path], evaluate: EvaluateConfig, scores_file: Path) -> Evaluation:
    """Of an output's files, in order. Each row's scores go to `scores_file`, in the order of the rows."""
    metrics = metrics_of(evaluate)
    evaluator = Evaluator(metrics)
    schema = pa.schema([(metric.name, pa.float64()) for metric in metrics])
    with replacing(scores_file) as half:
        with pq.ParquetWriter(half, schema) as writer:
            for batch in _batches(files, _columns(evaluate, metrics)):
                scores = evaluator.add(**_arguments(batch, evaluate, metrics))
                writer.write_table(pa.table(scores, schema=schema))
    return Evaluation(evaluator.result(), evaluator.details())


def _batches(files: Sequence[Path], columns: list[str] | None) -> Iterator[pa.RecordBatch]:
    for path in files:
        yield from pq.ParquetFile(path).iter_batches(_BATCH_ROWS, columns=columns)


def _columns(evaluate: EvaluateConfig, metrics: Sequence[Metric]) -> list[str] | None:
    """None, for all, where a user's metric is among them."""
    if any(metric.needs == "row" for metric in metrics):
        return None
    wanted = ["completion", "status", evaluate.references, evaluate.contexts, evaluate.gold_contexts]
    return list(dict.fromkeys(filter(None, wanted)))


def _arguments(batch: pa.RecordBatch, evaluate: EvaluateConfig, metrics: Sequence[Metric]) -> Mapping[str, Any]:
    named = {key: getattr(evaluate, key) for key in ("references", "contexts", "gold_contexts")}
    needs_rows = any(metric.needs == "row" for metric in metrics)
    return {
        "completions": batch["completion"],
        "statuses": batch["status"],
        **{key: None if column is None else batch[column] for key, column in named.items()},
        "rows": _rows(batch) if needs_rows else None,
    }


def _rows(table: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    columns = [readable_values(column) for column in table.columns]
    return [dict(zip(table.schema.names, values)) for values in zip(*columns, strict=True)]
