"""What rows say about their own completions, besides their prompts."""

import pyarrow as pa

from batchpaged.config import Pipeline
from batchpaged.dataset.constraint_column import row_grammars
from batchpaged.errors import RowError


def add_row_settings(prompts: pa.Table, rows: pa.Table, pipeline: Pipeline) -> pa.Table:
    """`prompts`, one row per row of the input, with a column `grammar`; a row that asks for what cannot be fails."""
    structured = pipeline.sampling.structured
    if structured is None or structured.column is None:
        return prompts.append_column("grammar", pa.nulls(len(prompts), pa.string()))
    grammars = row_grammars(rows, structured.column)
    prompts = fail_rows(prompts, grammars)
    texts = [None if isinstance(grammar, RowError) else grammar for grammar in grammars]
    return prompts.append_column("grammar", pa.array(texts, pa.string()))


def fail_rows(prompts: pa.Table, outcomes: list[object]) -> pa.Table:
    """Rows whose outcome is a RowError have failed for that reason, unless they have for another."""
    if not any(isinstance(outcome, RowError) for outcome in outcomes):
        return prompts
    pairs = zip(prompts.to_pylist(), outcomes, strict=True)
    return pa.Table.from_pylist([_row(row, outcome) for row, outcome in pairs], schema=prompts.schema)


def _row(row: dict[str, object], outcome: object) -> dict[str, object]:
    if row["status"] == "failed" or not isinstance(outcome, RowError):
        return row
    return {**row, "token_ids": None, "num_truncated": None, "status": "failed", "error": str(outcome)}
