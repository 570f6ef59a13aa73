"""`model.adapter` and `model.adapter_column`: which LoRA adapter a row is computed with."""

import pyarrow as pa

from batchpaged.config import ModelConfig
from batchpaged.dataset.cells import column_values
from batchpaged.dataset.schema import is_text, no_column
from batchpaged.errors import InputError, RowError


def check_adapter_column(config: ModelConfig, schema: pa.Schema) -> None:
    """Raises InputError: the input lacks the column, or it cannot hold names."""
    column = config.adapter_column
    if column is None:
        return
    if column not in schema.names:
        raise InputError(f"model.adapter_column: {no_column(column, schema.names)}")
    kind = schema.field(column).type
    if not is_text(kind) and not pa.types.is_null(kind):
        raise InputError(f"model.adapter_column: column {column!r} is {kind}, must be a string")


def row_adapters(rows: pa.Table, config: ModelConfig) -> list[int | None | RowError] | None:
    """Per row the number of its adapter, its place in `model.adapters`; None for all: the base model alone."""
    if not config.adapters:
        return None
    numbers = {name: number for number, (name, _) in enumerate(config.adapters)}
    if config.adapter_column is None:
        return [numbers[config.adapter]] * rows.num_rows
    unknown = RowError(f"column {config.adapter_column!r}: a name that is none of model.adapters ({', '.join(numbers)})")
    values = column_values(rows.column(config.adapter_column), config.adapter_column)
    return [value if value is None or isinstance(value, RowError) else numbers.get(value, unknown) for value in values]
