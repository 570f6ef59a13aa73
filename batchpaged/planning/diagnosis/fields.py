"""The texts inside a table that prompts are made from: strings, strings in lists and structs, contents of messages."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from batchpaged.config import PromptConfig
from batchpaged.dataset.cells import column_values
from batchpaged.dataset.messages import parse_messages
from batchpaged.dataset.schema import is_list, is_text
from batchpaged.errors import RowError

Place = tuple[str | int, ...]  # the column, and where in its value: ("contexts", 2, "title")
Visit = Callable[[int, Place, str], str]  # (row, place, text) -> the text that is to stand there


def plain_messages(table: pa.Table, config: PromptConfig) -> pa.Table:
    """Messages as JSON text, whatever type their column had; null where a row has none. Other sources stay."""
    column = config.messages_column
    if column is None:
        return table
    texts = [_to_json(value, column) for value in column_values(table[column], column)]
    return _replace(table, column, pa.array(texts, pa.large_string()))


def _to_json(value: Any, column: str) -> str | None:
    try:
        return None if isinstance(value, RowError) else json.dumps(parse_messages(value, column))
    except (RowError, TypeError, ValueError):  # no messages, or fields that JSON does not have
        return None


def change_texts(table: pa.Table, config: PromptConfig, columns: Sequence[str], visit: Visit) -> pa.Table:
    """The table with every text as `visit` gives it back; columns in which nothing changed are as they were."""
    for name in columns:
        if name == config.messages_column:
            table = _change_column(table, name, _walk_messages, visit)
        elif _holds_text(table.schema.field(name).type):
            table = _change_column(table, name, _walk, visit)
    return table


def read_texts(table: pa.Table, config: PromptConfig, columns: Sequence[str]) -> list[dict[Place, str]]:
    """The texts of each row, by place."""
    found: list[dict[Place, str]] = [{} for _ in range(table.num_rows)]

    def visit(row: int, place: Place, text: str) -> str:
        found[row][place] = text
        return text

    change_texts(table, config, columns, visit)
    return found


def _change_column(table: pa.Table, name: str, walk: Callable[[Any, Place, int, Visit], Any], visit: Visit) -> pa.Table:
    values = column_values(table[name], name)
    changed = [walk(value, (name,), row, visit) for row, value in enumerate(values)]
    return table if changed == values else _replace(table, name, pa.array(changed, table.schema.field(name).type))


def _replace(table: pa.Table, name: str, column: pa.Array) -> pa.Table:
    return table.set_column(table.schema.get_field_index(name), name, column)


def _walk(value: Any, place: Place, row: int, visit: Visit) -> Any:
    if isinstance(value, str):
        return visit(row, place, value)
    if isinstance(value, list):
        return [_walk(item, (*place, i), row, visit) for i, item in enumerate(value)]
    if isinstance(value, dict):
        return {key: _walk(item, (*place, key), row, visit) for key, item in value.items()}
    return value


def _walk_messages(value: str | None, place: Place, row: int, visit: Visit) -> str | None:
    if value is None:
        return None
    messages = json.loads(value)
    changed = [{**m, "content": visit(row, (*place, i, m["role"]), m["content"])} for i, m in enumerate(messages)]
    return value if changed == messages else json.dumps(changed)


def _holds_text(kind: pa.DataType) -> bool:
    if is_list(kind):
        return _holds_text(kind.value_type)
    return any(_holds_text(field.type) for field in kind) if pt.is_struct(kind) else is_text(kind)
