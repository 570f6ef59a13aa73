"""The ways a pipeline file can say what a row's prompt is, each as one class: columns in, texts (or token ids) out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from batchpaged.dataset.cells import column_values, has_nulls
from batchpaged.dataset.messages import Message, MessageFormat, PlainFormat, find_user_text, make_format, parse_messages
from batchpaged.dataset.schema import is_list
from batchpaged.dataset.special_tokens import SpecialTokens
from batchpaged.dataset.templates import TextTemplate, wrap_nulls
from batchpaged.errors import ConfigError, RowError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from batchpaged.config import PromptConfig


@dataclass(frozen=True)
class Rendered:
    """The whole text of a row's prompt, before tokenisation. Special tokens in what the row says are hidden."""

    text: str
    messages: list[Message] | None  # what it was made from; None for a text column


class TextSource(Protocol):
    """One of the sources that give text."""

    columns: list[str]

    def contents(self, table: pa.Table) -> list[list[str] | RowError]:
        """What each row says, message by message, without a chat template."""

    def render(self, table: pa.Table) -> list[Rendered | RowError]: ...

    def find_user_text(self, rendered: Rendered) -> tuple[int, int] | None:
        """The characters that truncation may take tokens from."""


class Renders(Protocol):
    """A template, or what stands in for one."""

    def render(self, values: Mapping[str, Any]) -> str: ...


class TemplateSource:
    """`prompt.user` and, if given, `prompt.system`: Jinja2 over the row's columns, then the chat template."""

    def __init__(
        self, config: PromptConfig, tokenizer: PreTrainedTokenizerBase, special: SpecialTokens | None
    ) -> None:
        templates = compile_templates(config)
        self._templates: dict[str, Renders] = {**templates}
        self._format = make_format(tokenizer, config.chat_template)
        self._special = special
        self.columns = sorted(set().union(*(template.variables for template in templates.values())))
        if not isinstance(self._format, PlainFormat):
            self._format.check(list(self._templates))
        elif special is not None:
            _refuse_chat_by_hand(config, special)

    def with_templates(self, templates: Mapping[str, Renders]) -> TemplateSource:
        """The same with other templates over the same columns."""
        other = copy(self)
        other._templates = dict(templates)
        return other

    def contents(self, table: pa.Table) -> list[list[str] | RowError]:
        return _contents(self._try_messages(values) for values in self.rows(table))

    def render(self, table: pa.Table) -> list[Rendered | RowError]:
        return _render_each(self._format, [self._try_messages(values) for values in self.rows(table)], self._special)

    def find_user_text(self, rendered: Rendered) -> tuple[int, int] | None:
        return find_user_text(self._format, rendered.messages or [], rendered.text)

    def rows(self, table: pa.Table) -> list[dict[str, Any]]:
        if not self.columns:
            return [{} for _ in range(table.num_rows)]
        columns = [_template_values(table.column(name), name) for name in self.columns]
        return [dict(zip(self.columns, values, strict=True)) for values in zip(*columns, strict=True)]

    def _try_messages(self, values: dict[str, Any]) -> list[Message] | RowError:
        try:
            for value in values.values():
                if isinstance(value, RowError):
                    raise value
            messages = [{"role": role, "content": t.render(values)} for role, t in self._templates.items()]
        except RowError as error:
            return error
        user = messages[-1]["content"]
        return (
            messages
            if user.strip()
            else RowError(f"empty prompt: prompt.user gave {len(user)} characters of white space")
        )


class MessagesSource:
    """`prompt.messages_column`: a list of structs with role and content, or JSON text of one."""

    def __init__(
        self, config: PromptConfig, tokenizer: PreTrainedTokenizerBase, special: SpecialTokens | None
    ) -> None:
        self.columns = [config.messages_column]
        self._special = special
        self._format = make_format(tokenizer, config.chat_template)
        if isinstance(self._format, PlainFormat):
            raise ConfigError(
                "prompt.messages_column needs a chat template and there is none: "
                "set prompt.chat_template to a template file, or use prompt.text_column"
            )

    def contents(self, table: pa.Table) -> list[list[str] | RowError]:
        return _contents(self._conversations(table))

    def render(self, table: pa.Table) -> list[Rendered | RowError]:
        return _render_each(self._format, self._conversations(table), self._special)

    def find_user_text(self, rendered: Rendered) -> tuple[int, int] | None:
        return find_user_text(self._format, rendered.messages or [], rendered.text)

    def _conversations(self, table: pa.Table) -> list[list[Message] | RowError]:
        return [self._try_parse(value) for value in column_values(table.column(self.columns[0]), self.columns[0])]

    def _try_parse(self, value: Any) -> list[Message] | RowError:
        try:
            return value if isinstance(value, RowError) else parse_messages(value, self.columns[0])
        except RowError as error:
            return error


class TextColumnSource:
    """`prompt.text_column`: the prompt itself; no chat template is applied."""

    def __init__(self, config: PromptConfig, special: SpecialTokens | None) -> None:
        self.columns = [config.text_column]
        self._special = special

    def contents(self, table: pa.Table) -> list[list[str] | RowError]:
        return [text if isinstance(text, RowError) else [text] for text in self._texts(table)]

    def render(self, table: pa.Table) -> list[Rendered | RowError]:
        return [
            text if isinstance(text, RowError) else Rendered(_hide(text, self._special), None)
            for text in self._texts(table)
        ]

    def find_user_text(self, rendered: Rendered) -> tuple[int, int] | None:
        return 0, len(rendered.text)

    def _texts(self, table: pa.Table) -> list[str | RowError]:
        return [self._judge(value) for value in column_values(table.column(self.columns[0]), self.columns[0])]

    def _judge(self, value: Any) -> str | RowError:
        if isinstance(value, RowError):
            return value
        if value is None:
            return RowError(f"column {self.columns[0]!r} is null")
        if not isinstance(value, str):
            return RowError(f"column {self.columns[0]!r}: a {type(value).__name__}, must be a string")
        if not value.strip():
            return RowError(f"empty prompt: column {self.columns[0]!r} has {len(value)} characters of white space")
        return value


class TokenIdsSource:
    """`prompt.token_ids_column`: the prompt's token ids, taken as they are, BOS or not."""

    def __init__(self, config: PromptConfig, vocab_size: int) -> None:
        self.columns = [config.token_ids_column]
        self._vocab_size = vocab_size

    def read(self, table: pa.Table) -> list[list[int] | RowError]:
        return [self._judge(value) for value in column_values(table.column(self.columns[0]), self.columns[0])]

    def read_at_once(self, table: pa.Table) -> pa.ListArray | None:
        """The rows as one array, without looking at each; None where any of them needs to be looked at."""
        column = table.column(self.columns[0]).combine_chunks()
        if not is_list(column.type) or not pt.is_integer(column.type.value_type) or column.null_count:
            return None
        ids, lengths = column.flatten(), pc.list_value_length(column)
        if ids.null_count or not pc.min(lengths).as_py():
            return None
        extent = pc.min_max(ids)
        is_known = extent["min"].as_py() >= 0 and extent["max"].as_py() < self._vocab_size
        return column.cast(pa.list_(pa.int32())) if is_known else None

    def _judge(self, value: Any) -> list[int] | RowError:
        where = f"column {self.columns[0]!r}"
        if isinstance(value, RowError):
            return value
        if value is None:
            return RowError(f"{where} is null")
        if not isinstance(value, list):
            return RowError(f"{where}: a {type(value).__name__}, must be a list of token ids")
        if not value:
            return RowError(f"empty prompt: {where} has no token ids")
        kinds = set(map(type, value))
        if kinds != {int}:
            return RowError(
                f"{where}: token ids must be integers; found {', '.join(sorted(_kind(k) for k in kinds - {int}))}"
            )
        if min(value) < 0 or max(value) >= self._vocab_size:
            return RowError(f"{where}: a token id outside 0 to {self._vocab_size - 1}, the model's vocabulary")
        return value


def compile_templates(config: PromptConfig) -> dict[str, TextTemplate]:
    """By role, in the order of the messages. Raises ConfigError for a template that does not compile."""
    texts = {"system": config.system, "user": config.user}
    return {role: TextTemplate(text, f"prompt.{role}") for role, text in texts.items() if text is not None}


def _contents(conversations: Iterable[list[Message] | RowError]) -> list[list[str] | RowError]:
    return [c if isinstance(c, RowError) else [message["content"] for message in c] for c in conversations]


def _refuse_chat_by_hand(config: PromptConfig, special: SpecialTokens) -> None:
    """Raises ConfigError where the templates, and no chat template, write special tokens: they would be text."""
    for key, text in (("prompt.system", config.system), ("prompt.user", config.user)):
        found = special.find(text or "")
        if found is not None:
            raise ConfigError(
                f"{key} writes the special token {found!r}, which without a chat template counts as text; set "
                "prompt.allow_special_tokens: true to make it a token, there and in the columns, or leave it out"
            )


def _hide(value: Any, special: SpecialTokens | None) -> Any:
    return value if special is None else special.hide(value)


def _render_each(
    render: MessageFormat, conversations: Sequence[list[Message] | RowError], special: SpecialTokens | None
) -> list[Rendered | RowError]:
    """All conversations that are one in a single call, each result back in its place."""
    conversations = [c if isinstance(c, RowError) else _hide(c, special) for c in conversations]
    texts = iter(render.render([c for c in conversations if not isinstance(c, RowError)]))
    results: list[Rendered | RowError] = []
    for messages in conversations:
        text = messages if isinstance(messages, RowError) else next(texts)
        results.append(text if isinstance(text, RowError) else Rendered(text, messages))
    return results


def _template_values(column: pa.ChunkedArray, name: str) -> list[Any]:
    values = column_values(column, name)
    if not has_nulls(column):
        return values
    return [value if isinstance(value, RowError) else wrap_nulls(value, name) for value in values]


def _kind(kind: type) -> str:
    return "null" if kind is type(None) else kind.__name__
