"""What rows say about their own completions, besides their prompts: a grammar, an adapter."""

from collections.abc import Sequence

import pyarrow as pa

from batchpaged.config import Pipeline
from batchpaged.dataset.adapter_column import row_adapters
from batchpaged.dataset.constraint_column import row_grammars
from batchpaged.errors import RowError


def add_row_settings(prompts: pa.Table, rows: pa.Table, pipeline: Pipeline) -> pa.Table:
    """`prompts`, one row per row of the input, with columns `adapter` and `grammar`; a row that asks for what cannot be fails."""
    prompts = _add(prompts, "adapter", pa.int16(), row_adapters(rows, pipeline.model))
    structured = pipeline.sampling.structured
    has_column = structured is not None and structured.column is not None
    return _add(prompts, "grammar", pa.string(), row_grammars(rows, structured.column) if has_column else None)


def _add(prompts: pa.Table, name: str, kind: pa.DataType, values: Sequence[object] | None) -> pa.Table:
    """`values`: one per row, or why the row fails; None: null for all."""
    if values is None:
        return prompts.append_column(name, pa.nulls(len(prompts), kind))
    prompts = _fail_rows(prompts, values)
    return prompts.append_column(name, pa.array([None if isinstance(v, RowError) else v for v in values], kind))


def _fail_rows(prompts: pa.Table, values: Sequence[object]) -> pa.Table:
    """A row that has failed already keeps its reason."""
    if not any(isinstance(value, RowError) for value in values):
        return prompts
    pairs = zip(prompts.to_pylist(), values, strict=True)
    return pa.Table.from_pylist([_row(row, value) for row, value in pairs], schema=prompts.schema)


def _row(row: dict[str, object], value: object) -> dict[str, object]:
    if row["status"] == "failed" or not isinstance(value, RowError):
        return row
    return {**row, "token_ids": None, "num_truncated": None, "status": "failed", "error": str(value)}
