"""`sampling.structured.column`: each row's own JSON schema."""

import pyarrow as pa

from batchpaged.config.structured import StructuredConfig
from batchpaged.dataset.cells import column_values
from batchpaged.dataset.schema import is_text, no_column
from batchpaged.errors import InputError, RowError
from batchpaged.structured.grammar import UnfollowableSchema, schema_grammar


def check_constraint_column(config: StructuredConfig | None, schema: pa.Schema) -> None:
    """Raises InputError: the input lacks the column, or it cannot hold JSON schemas."""
    if config is None or config.column is None:
        return
    key = "sampling.structured.column"
    if config.column not in schema.names:
        raise InputError(f"{key}: {no_column(config.column, schema.names)}")
    kind = schema.field(config.column).type
    if not is_text(kind):
        raise InputError(f"{key}: column {config.column!r} is {kind}, must be a string of JSON")


def row_grammars(rows: pa.Table, column: str) -> list[str | None | RowError]:
    """A grammar per row; None where the row is free, and why where its schema cannot be followed."""
    return [_grammar(value, column) for value in column_values(rows.column(column), column)]


def _grammar(value: str | None | RowError, column: str) -> str | None | RowError:
    if value is None or isinstance(value, RowError):
        return value
    try:
        return schema_grammar(value)
    except UnfollowableSchema as error:
        return RowError(f"column {column!r}: the schema {error}")
    except ValueError:
        return RowError(f"column {column!r}: the schema, of {len(value)} characters, cannot be followed")
