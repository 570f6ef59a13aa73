"""The schema of a data set: one for all its files, and the columns a run adds to it.

What is kept of metadata: field metadata of the file in which a column first appears; a key of schema metadata only
where every file carries it with the same value (so `huggingface` features survive), and `pandas` only where no column's
type had to change, because it describes the types one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.types as pt

from batchpaged.config import SamplingConfig
from batchpaged.dataset.promotion import promote_fields
from batchpaged.errors import InputError
from batchpaged.spelling import nearest

OUTPUT_COLUMNS = pa.schema(
    [
        ("completion", pa.string()),  # null when the row failed
        ("finish_reason", pa.string()),  # stop | length
        ("prompt_tokens", pa.int32()),
        ("cached_tokens", pa.int32()),  # of the prompt tokens, those whose keys and values came from the cache
        ("completion_tokens", pa.int32()),
        ("status", pa.string()),  # ok | truncated | failed
        ("error", pa.string()),  # null when ok
        ("prompt_hash", pa.string()),  # xxh3-128 of the token ids, 32 hex digits
    ]
)

TOKEN_LOGPROB = [("token_id", pa.int32()), ("logprob", pa.float32())]  # natural logarithms
TOKENS_LOGPROBS = pa.list_(
    pa.struct(
        [
            *TOKEN_LOGPROB,  # of the token that is there
            ("rank", pa.int32()),  # 1: no token is more likely
            ("top", pa.list_(pa.struct(TOKEN_LOGPROB))),  # the most likely tokens, best first
        ]
    )
)
# One value per completion: lists of these where a row has several.
_PER_COMPLETION = ("completion", "finish_reason", "completion_tokens", "completion_logprobs", "completion_score")


def output_columns(sampling: SamplingConfig) -> pa.Schema:
    """OUTPUT_COLUMNS, and those that the run asks for; lists, where it asks for several completions of a row."""
    fields = list(OUTPUT_COLUMNS)
    if sampling.best_of is not None or sampling.beam_width is not None:
        fields.append(pa.field("completion_score", pa.float32()))
    if sampling.logprobs is not None:
        fields.append(pa.field("completion_logprobs", TOKENS_LOGPROBS))
    if sampling.prompt_logprobs is not None:
        fields.append(pa.field("prompt_logprobs", TOKENS_LOGPROBS))
    if sampling.n > 1:
        fields = [f.with_type(pa.list_(f.type)) if f.name in _PER_COMPLETION else f for f in fields]
    return pa.schema(fields)


def unify(schemas: Sequence[pa.Schema], names: Sequence[str] | None = None) -> pa.Schema:
    """One schema that every row of every file fits; `names` (of the files) go into the error.

    Columns come in the order in which they first appear; one that a file lacks is null there. Raises InputError with
    every column whose types do not go together.
    """
    schema, problems = merge_schemas(schemas, names or [f"schema {i}" for i in range(len(schemas))])
    if problems:
        raise InputError("; ".join(problems))
    return schema


def merge_schemas(schemas: Sequence[pa.Schema], names: Sequence[str]) -> tuple[pa.Schema, list[str]]:
    """As `unify`, but returns the problems; a column with a problem keeps the type it had first."""
    merger = _Merger()
    for schema, name in _distinct(schemas, names):
        merger.add(schema, name)
    unified = pa.schema(merger.fields.values())
    return unified.with_metadata(_common_metadata(schemas, unified)), merger.describe_conflicts()


def check_no_clash(schema: pa.Schema, columns: pa.Schema = OUTPUT_COLUMNS) -> None:
    """Raises InputError if an input column has the name of an output column."""
    problems = describe_clashes(schema, columns)
    if problems:
        raise InputError("; ".join(problems))


def describe_clashes(schema: pa.Schema, columns: pa.Schema = OUTPUT_COLUMNS) -> list[str]:
    clashes = [repr(name) for name in schema.names if name in columns.names]
    if not clashes:
        return []
    return [f"input columns {', '.join(clashes)} have the name of an output column; rename or drop them in the input"]


def conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table with exactly the columns and types of `schema`; columns it lacks are null. Values never change.

    Raises pa.ArrowInvalid for a value that its unified type cannot hold.
    """
    columns = [_conform_column(table, field) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def no_column(name: str, names: Sequence[str]) -> str:
    """What is wrong with the name, and what was meant or can be."""
    meant = nearest(name, names)
    hint = f"did you mean {meant!r}? The input" if meant else "it"
    return f"{name!r} is no column of the input; {hint} has {', '.join(names) or 'none'}"


def is_text(kind: pa.DataType) -> bool:
    """Strings of any layout, dictionaries of strings included."""
    if pt.is_dictionary(kind):
        return is_text(kind.value_type)
    return pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind)


def is_bytes(kind: pa.DataType) -> bool:
    """Binary of any layout, dictionaries of it included."""
    if pt.is_dictionary(kind):
        return is_bytes(kind.value_type)
    return pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind) or pt.is_binary_view(kind)


def is_list(kind: pa.DataType) -> bool:
    return pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind)


def _conform_column(table: pa.Table, field: pa.Field) -> pa.ChunkedArray:
    if field.name not in table.column_names:
        return pa.chunked_array([pa.nulls(table.num_rows, field.type)])
    column = table.column(field.name)
    return column if column.type.equals(field.type, check_metadata=True) else column.cast(field.type)


class _Merger:
    """Folds schemas into one, remembering for each column the file that set its type."""

    def __init__(self) -> None:
        self.fields: dict[str, pa.Field] = {}
        self._origins: dict[str, str] = {}  # column -> the file its present type comes from
        self._conflicts: dict[tuple[str, str], list[str]] = {}  # (column, type) -> files with that type
        self._is_first = True

    def add(self, schema: pa.Schema, name: str) -> None:
        for field in schema:
            self._add_field(field, name)
        for column in self.fields.keys() - set(schema.names):  # missing here: null in this file's rows
            self.fields[column] = self.fields[column].with_nullable(True)
        self._is_first = False

    def _add_field(self, field: pa.Field, name: str) -> None:
        known = self.fields.get(field.name)
        if known is None:
            self.fields[field.name] = field if self._is_first else field.with_nullable(True)
            self._origins[field.name] = name
            return
        merged = promote_fields(known, field)
        if merged is None:
            self._conflicts.setdefault((field.name, str(field.type)), []).append(name)
        elif merged.type != known.type:
            self._origins[field.name] = name
        self.fields[field.name] = merged or known

    def describe_conflicts(self) -> list[str]:
        return [self._describe(*key, files) for key, files in self._conflicts.items()]

    def _describe(self, column: str, kind: str, files: list[str]) -> str:
        also = f" (and {len(files) - 1} more schemas)" if len(files) > 1 else ""
        return (
            f"column {column!r} is {self.fields[column].type} in {self._origins[column]} "
            f"but {kind} in {files[0]}{also}; "
            "write it with one type in all files, or list the files in two pipelines"
        )


def _distinct(schemas: Sequence[pa.Schema], names: Sequence[str]) -> Iterable[tuple[pa.Schema, str]]:
    """The first of each kind: ten thousand shards usually have one schema, whatever their metadata say."""
    seen: dict[pa.Schema, str] = {}
    for schema, name in zip(schemas, names, strict=True):
        seen.setdefault(schema.remove_metadata(), name)
    return seen.items()


def _common_metadata(schemas: Sequence[pa.Schema], unified: pa.Schema) -> dict[bytes, bytes] | None:
    if not schemas:
        return None
    common = dict(schemas[0].metadata or {})
    for schema in schemas[1:]:
        metadata = schema.metadata or {}
        common = {key: value for key, value in common.items() if metadata.get(key) == value}
    if not all(schema.equals(unified) for schema in schemas):
        common.pop(b"pandas", None)
    return common or None
