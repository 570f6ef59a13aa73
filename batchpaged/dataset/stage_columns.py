"""What a stage adds to the columns that later stages see, and that the output has."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from batchpaged.config import Pipeline
from batchpaged.dataset.reorder import order_field
from batchpaged.dataset.schema import TOKENS_LOGPROBS, is_list, output_columns

_EXAMPLES = {
    "completion": "an answer",
    "finish_reason": "stop",
    "prompt_tokens": 1,
    "cached_tokens": 0,
    "completion_tokens": 1,
    "status": "ok",
    "prompt_hash": "0" * 32,
    "completion_score": -1.0,
}


def added_columns(pipeline: Pipeline) -> pa.Schema:
    """Of a pipeline without stages, or of one stage: what its output has besides the input's columns."""
    reorder = pipeline.prompt.reorder
    return pa.schema([*output_columns(pipeline.sampling), *([] if reorder is None else [order_field(reorder)])])


def stage_names(stage: str, added: pa.Schema) -> dict[str, str]:
    """Output column -> its name for the stages after this one: the completion has the stage's, the others begin with it."""
    return {name: stage if name == "completion" else f"{stage}_{name}" for name in added.names}


def stage_fields(stage: str, added: pa.Schema) -> list[pa.Field]:
    """What later stages see of a stage whose output has these columns."""
    names = stage_names(stage, added)
    return [field.with_name(names[field.name]) for field in added]


def example_row(added: pa.Schema) -> dict[str, Any]:
    """What a row that went well could have in these columns: one item where there are several, and log-probabilities of no token."""
    return {field.name: _example(field.name, field.type) for field in added}


def _example(name: str, kind: pa.DataType) -> Any:
    if kind.equals(TOKENS_LOGPROBS):
        return []
    return [_example(name, kind.value_type)] if is_list(kind) else _EXAMPLES.get(name)
