"""From rows to token ids: render, tokenise, and decide whether each prompt fits.

A row that cannot become a prompt is a failed row with its reason; the rows around it are not touched. Reasons name
columns, types, lengths and template lines, never what a row says.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from batchpaged.dataset.encoder import Encoder
from batchpaged.dataset.prompt_sources import (
    MessagesSource,
    Rendered,
    Renders,
    TemplateSource,
    TextColumnSource,
    TextSource,
    TokenIdsSource,
    compile_templates,
)
from batchpaged.dataset.reorder import order_field
from batchpaged.dataset.schema import is_bytes, is_list, is_text
from batchpaged.dataset.special_tokens import SpecialTokens
from batchpaged.errors import ConfigError, InputError, RowError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from batchpaged.config import PromptConfig

PROMPT_SCHEMA = pa.schema(
    [
        ("token_ids", pa.list_(pa.int32())),  # null if the row failed
        ("num_truncated", pa.int32()),  # token ids removed; null if the row failed
        ("status", pa.string()),  # ok | truncated | failed
        ("error", pa.string()),  # null when ok
    ]
)
_BATCH_ROWS = 1024  # rows rendered and tokenised at a time, so that a part of any size fits in memory

TokenRange = tuple[int, int]  # positions [first, last) in a row's token ids


@dataclass(frozen=True)
class _PromptRow:
    """One row of PROMPT_SCHEMA."""

    token_ids: list[int] | None
    num_truncated: int | None
    status: str
    error: str | None


class PromptBuilder:
    """Builds the prompts of a part. Make one per worker: it holds compiled templates and is not picklable.

    A prompt fits if its tokens and `max_tokens` stay within `max_model_len`. What does not fit fails, or with
    `on_too_long: truncate_left | truncate_right` loses tokens from the start or the end of its user text only: BOS,
    system text, other messages and the generation prompt stay whole. For a text column that is the text, for token ids
    all of them.
    """

    def __init__(
        self, config: PromptConfig, tokenizer: PreTrainedTokenizerBase, max_model_len: int, max_tokens: int
    ) -> None:
        """Raises ConfigError for a template or chat template that cannot work for any row."""
        if max_tokens >= max_model_len:
            raise ConfigError(
                f"sampling.max_tokens {max_tokens} leaves no room for a prompt: model.max_model_len is {max_model_len}"
            )
        self._on_too_long = config.on_too_long
        self._max_model_len = max_model_len
        self._max_tokens = max_tokens
        special = None if config.allow_special_tokens else SpecialTokens(tokenizer)
        self._encoder = Encoder(tokenizer, special)
        self._source = _make_source(config, tokenizer, special, self._encoder.vocab_size)

    @property
    def columns(self) -> list[str]:
        """The input columns that prompts are made from."""
        return list(self._source.columns)

    def build(self, table: pa.Table) -> pa.Table:
        """One row of PROMPT_SCHEMA per input row, in the same order. Raises InputError if a column is not there."""
        missing = [name for name in self.columns if name not in table.column_names]
        if missing:
            raise InputError(f"the prompt needs columns that are not in the input: {', '.join(missing)}")
        starts = range(0, table.num_rows, _BATCH_ROWS)
        batches = [self._build_batch(table.slice(start, _BATCH_ROWS)) for start in starts]
        return pa.concat_tables(batches) if batches else PROMPT_SCHEMA.empty_table()

    def token_ids_before(self, table: pa.Table, mark: str) -> list[list[int] | RowError]:
        """Of each row's prompt as far as a mark that templates have printed, without the last token, which might go on;
        of a prompt without it, all. One that is too long as far as that has failed, or, where it would be truncated, is not known.
        For prompts that are texts."""
        found = self._source.render(table)
        cut = [r if isinstance(r, RowError) else r.text.partition(mark)[:2] for r in found]
        encoded = iter(self._encoder.encode([c[0] for c in cut if not isinstance(c, RowError)]))
        ids = [(c, c) if isinstance(c, RowError) else (c[1], next(encoded)) for c in cut]
        return [found if isinstance(found, RowError) else self._known(found[:-1] if is_cut else found) for is_cut, found in ids]

    def _known(self, ids: list[int]) -> list[int] | RowError:
        if len(ids) + self._max_tokens <= self._max_model_len:
            return ids
        return RowError(self._too_long(ids)) if self._on_too_long == "error" else []

    def contents(self, table: pa.Table) -> list[list[str] | RowError]:
        """What each row says, message by message, before chat template and tokens. Not for token ids."""
        return self._source.contents(table)

    def values(self, table: pa.Table) -> list[dict[str, Any]]:
        """What the templates are filled with, row by row. For templates only."""
        return self._source.rows(table)

    def with_templates(self, templates: Mapping[str, Renders]) -> PromptBuilder:
        """The same, with other templates (by role) over the same columns."""
        other = copy(self)
        other._source = self._source.with_templates(templates)
        return other

    def _build_batch(self, table: pa.Table) -> pa.Table:
        whole = self._build_at_once(table) if isinstance(self._source, TokenIdsSource) else None
        if whole is not None:
            return whole
        rows = self._build_from_ids(table) if isinstance(self._source, TokenIdsSource) else self._build_from_text(table)
        arrays = [pa.array([getattr(row, field.name) for row in rows], field.type) for field in PROMPT_SCHEMA]
        return pa.Table.from_arrays(arrays, schema=PROMPT_SCHEMA)

    def _build_at_once(self, table: pa.Table) -> pa.Table | None:
        """Token ids that are prompts as they are; None if any of these rows fails or is too long."""
        ids = self._source.read_at_once(table)
        if ids is None or pc.max(pc.list_value_length(ids)).as_py() + self._max_tokens > self._max_model_len:
            return None
        n = len(ids)
        columns = [ids, pa.array(np.zeros(n, np.int32)), pa.repeat("ok", n), pa.nulls(n, pa.string())]
        return pa.Table.from_arrays(columns, schema=PROMPT_SCHEMA)

    def _build_from_ids(self, table: pa.Table) -> list[_PromptRow]:
        return [self._finish(ids, lambda ids=ids: self._all_but_bos(ids)) for ids in self._source.read(table)]

    def _build_from_text(self, table: pa.Table) -> list[_PromptRow]:
        rendered = self._source.render(table)
        encoded = iter(self._encoder.encode([r.text for r in rendered if isinstance(r, Rendered)]))
        rows = []
        for item in rendered:
            ids = item if isinstance(item, RowError) else next(encoded)
            rows.append(self._finish(ids, lambda item=item: self._find_user_tokens(item)))
        return rows

    def _finish(self, ids: list[int] | RowError, find_removable: Callable[[], TokenRange | None]) -> _PromptRow:
        """Fail, truncate or accept; `find_removable` is asked only for a row that is too long."""
        if isinstance(ids, RowError):
            return _fail(str(ids))
        if not ids:
            return _fail("empty prompt: no tokens")
        num_excess = len(ids) + self._max_tokens - self._max_model_len
        if num_excess <= 0:
            return _PromptRow(ids, 0, "ok", None)
        if self._on_too_long == "error":
            return _fail(self._too_long(ids))
        return self._truncate(ids, num_excess, self._too_long(ids), find_removable())

    def _too_long(self, ids: list[int]) -> str:
        return f"too long: {len(ids)} prompt tokens + {self._max_tokens} max_tokens > {self._max_model_len} max_model_len"

    def _truncate(self, ids: list[int], num_excess: int, reason: str, removable: TokenRange | None) -> _PromptRow:
        if removable is None:
            return _fail(f"{reason}, and where its user text stands cannot be told, so it was not truncated")
        first, last = removable
        if num_excess >= last - first:
            return _fail(f"{reason}, and only {last - first} of the tokens are user text that could be removed")
        is_left = self._on_too_long == "truncate_left"
        start = first if is_left else last - num_excess
        side = "start" if is_left else "end"
        error = f"{reason}; {num_excess} tokens were removed from the {side} of the user text"
        return _PromptRow(ids[:start] + ids[start + num_excess :], num_excess, "truncated", error)

    def _all_but_bos(self, ids: list[int]) -> TokenRange:
        return (len(self._encoder.bos) if self._encoder.has_bos(ids) else 0), len(ids)

    def _find_user_tokens(self, rendered: Rendered) -> TokenRange | None:
        span = self._source.find_user_text(rendered)
        return None if span is None else self._encoder.find_tokens(rendered.text, *span)


def prompt_columns(config: PromptConfig) -> set[str]:
    """The input columns that prompts are made from. Raises ConfigError if a template does not compile."""
    names = set().union(*(template.variables for template in compile_templates(config).values()))
    return names | {getattr(config, key) for key in _COLUMN_TYPES if getattr(config, key) is not None}


def validate_prompt_columns(config: PromptConfig, schema: pa.Schema) -> None:
    """Raises InputError with every column that the prompt needs and the input lacks or has in a type that cannot work.

    Raises ConfigError if a template does not compile.
    """
    templates = compile_templates(config)
    used = {name: f"prompt.{role}" for role, t in templates.items() for name in sorted(t.variables)}
    printed = {name: f"prompt.{role}" for role, t in templates.items() for name in sorted(t.printed)}
    typed = {key: getattr(config, key) for key in _COLUMN_TYPES if getattr(config, key) is not None}
    needed = used | {name: f"prompt.{key}" for key, name in typed.items()}
    problems = [_describe_missing(name, key, schema) for name, key in needed.items() if name not in schema.names]
    for key, name in typed.items():
        is_right, expected = _COLUMN_TYPES[key]
        if name in schema.names and not is_right(schema.field(name).type):
            problems.append(f"prompt.{key}: column {name!r} is {schema.field(name).type}, must be {expected}")
    problems += [_describe_printed(name, key, schema.field(name).type) for name, key in printed.items() if name in schema.names]
    if config.reorder is not None:
        problems += _describe_reorder(config.reorder, used, schema)
    refused = [problem for problem in problems if problem]
    if refused:
        raise InputError("; ".join(refused))


def _describe_printed(name: str, key: str, kind: pa.DataType) -> str | None:
    """Why a column of this type cannot be printed as it is, if it cannot: it would fail every row, one by one."""
    if is_list(kind):
        return f"{key} prints {name!r}, which is a list; write {{{{ {name}[0] }}}}, {{{{ {name} | join(', ') }}}} or a loop"
    if pt.is_struct(kind):
        field = kind[0].name if kind.num_fields else "field"
        return f"{key} prints {name!r}, which is a struct; write {{{{ {name}.{field} }}}}, or {{{{ {name} | tojson }}}} for all of it"
    if pt.is_map(kind):
        return f"{key} prints {name!r}, which is a map; write {{{{ {name} | tojson }}}} or a loop"
    if is_bytes(kind):
        return f"{key} prints {name!r}, which is {kind}; decode it to a string in the input"
    return None


def _describe_reorder(column: str, used: Collection[str], schema: pa.Schema) -> list[str]:
    """Why `prompt.reorder` cannot be done, if it cannot."""
    if column not in schema.names:
        return [_describe_missing(column, "prompt.reorder", schema)]
    problems = []
    kind = schema.field(column).type
    if not is_list(kind):
        problems.append(f"prompt.reorder: column {column!r} is {kind}, must be a list of documents")
    if column not in used:
        problems.append(f"prompt.reorder: neither prompt.user nor prompt.system uses {column!r}; leave it out")
    added = order_field(column).name
    if added in schema.names:
        problems.append(
            f"prompt.reorder adds a column {added!r} to the output, which the input has already; rename or drop it"
        )
    return problems


def _make_source(
    config: PromptConfig, tokenizer: PreTrainedTokenizerBase, special: SpecialTokens | None, vocab_size: int
) -> TextSource | TokenIdsSource:
    if config.user is not None:
        return TemplateSource(config, tokenizer, special)
    if config.messages_column is not None:
        return MessagesSource(config, tokenizer, special)
    if config.text_column is not None:
        return TextColumnSource(config, special)
    if config.token_ids_column is not None:
        return TokenIdsSource(config, vocab_size)
    raise ConfigError("prompt: give one of user, messages_column, text_column, token_ids_column")


def _fail(reason: str) -> _PromptRow:
    return _PromptRow(None, None, "failed", reason)


def _describe_missing(name: str, key: str, schema: pa.Schema) -> str:
    near = difflib.get_close_matches(name, schema.names, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"the input has {', '.join(schema.names) or 'no columns'}"
    return f"{key} uses {name!r}, which is no column of the input; {hint}"


def _is_messages(kind: pa.DataType) -> bool:
    if is_text(kind) or pt.is_null(kind):
        return True
    return is_list(kind) and pt.is_struct(kind.value_type) and {"role", "content"} <= {f.name for f in kind.value_type}


def _is_token_ids(kind: pa.DataType) -> bool:
    return is_list(kind) and (pt.is_integer(kind.value_type) or pt.is_null(kind.value_type))


_COLUMN_TYPES = {
    "messages_column": (_is_messages, "a list of structs with role and content, or a string of JSON"),
    "text_column": (is_text, "a string"),
    "token_ids_column": (_is_token_ids, "a list of integers"),
}
