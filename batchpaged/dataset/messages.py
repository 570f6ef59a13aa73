"""Chat messages: read from a column, and written as one text by a chat template or plainly.

The plain form, used where there is no chat template: the system text, a blank line, the user text; without a system
text, the user text alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import jinja2

from batchpaged.errors import ConfigError, RowError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = dict[str, Any]  # "role" and "content", both strings, and whatever else the chat template understands
_MARK = "\ufffcbatchpaged-user-text\ufffc"  # stands for the user text while its place is looked for
_ROLES = (
    "system",
    "developer",
    "user",
    "assistant",
    "tool",
)  # shown in errors; any other role might be a row's content


class MessageFormat(Protocol):
    """Turns conversations into prompt texts."""

    def render(self, conversations: Sequence[list[Message]]) -> list[str | RowError]: ...


class PlainFormat:
    """System text, blank line, user text."""

    def render(self, conversations: Sequence[list[Message]]) -> list[str | RowError]:
        return ["\n\n".join(m["content"] for m in messages if m["content"]) for messages in conversations]


class ChatFormat:
    """The model's chat template, or one from a file, with the generation prompt at the end.

    Raises ConfigError if it does not compile.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, template: str | None) -> None:
        self._tokenizer = tokenizer
        self._template: str = tokenizer.get_chat_template(template)
        try:
            self._apply([[{"role": "user", "content": "x"}]])
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(f"prompt.chat_template, line {error.lineno}: {error.message}") from error
        except Exception:
            return  # it compiles; what it makes of real rows is theirs to tell

    def render(self, conversations: Sequence[list[Message]]) -> list[str | RowError]:
        try:
            return self._apply(list(conversations)) if conversations else []
        except Exception:  # which one it was is not said, so try each
            return [self._render_one(messages) for messages in conversations]

    def check(self, roles: Sequence[str]) -> None:
        """Raises ConfigError if the template refuses every conversation with these roles."""
        try:
            self._apply([[{"role": role, "content": "x"} for role in roles]])
        except jinja2.UndefinedError:
            return  # it may need fields that real rows have
        except jinja2.TemplateError as error:
            raise ConfigError(f"the chat template refuses messages of the roles {', '.join(roles)}: {error}") from error
        except Exception:
            return  # again, real rows may be different

    def _apply(self, conversations: list[list[Message]]) -> list[str]:
        return self._tokenizer.apply_chat_template(
            conversations, chat_template=self._template, tokenize=False, add_generation_prompt=True
        )

    def _render_one(self, messages: list[Message]) -> str | RowError:
        try:
            return self._apply([messages])[0]
        except jinja2.TemplateError as error:
            # The template's own words are shown only as they stand in it: they might quote the row.
            reason = str(error) if str(error) in self._template else "the chat template refused the messages"
            return RowError(f"chat template: {reason} (roles: {_roles(messages)})")
        except Exception as error:
            return RowError(f"chat template: {type(error).__name__} (roles: {_roles(messages)})")


def make_format(tokenizer: PreTrainedTokenizerBase, chat_template: str) -> MessageFormat:
    """`auto`: the tokenizer's chat template if it has one, else plain; `none`: plain; anything else: a file with a
    template.
    """
    if chat_template == "none" or (chat_template == "auto" and not tokenizer.chat_template):
        return PlainFormat()
    try:
        return ChatFormat(tokenizer, None if chat_template == "auto" else _read_template(chat_template))
    except ValueError as error:  # several named templates, none of them the default
        raise ConfigError(f"prompt.chat_template: {error}") from error


def find_user_text(render: MessageFormat, messages: list[Message], text: str) -> tuple[int, int] | None:
    """Where the last user message stands in `text`, as character positions; None if it is not there in one piece.

    Found by rendering once more with a mark in its place: what comes before and after the mark is not user text.
    """
    last = max((i for i, message in enumerate(messages) if message["role"] == "user"), default=None)
    if last is None:
        return None
    marked = [{**m, "content": _MARK} if i == last else m for i, m in enumerate(messages)]
    rendered = render.render([marked])[0]
    if isinstance(rendered, RowError) or rendered.count(_MARK) != 1:
        return None
    before, after = rendered.split(_MARK)
    is_whole = text.startswith(before) and text.endswith(after) and len(before) + len(after) <= len(text)
    return (len(before), len(text) - len(after)) if is_whole else None


def parse_messages(value: Any, column: str) -> list[Message]:
    """A conversation from a cell: a list of structs, or JSON text of one. Raises RowError, never quoting the cell."""
    if isinstance(value, str):
        value = _parse_json(value, column)
    if value is None:
        raise RowError(f"column {column!r} is null")
    if not isinstance(value, list):
        raise RowError(f"column {column!r}: a {type(value).__name__}, must be a list of messages")
    messages = [_parse_message(item, f"column {column!r}, message {i}") for i, item in enumerate(value)]
    if not any(message["content"].strip() for message in messages):
        raise RowError(f"empty prompt: column {column!r} has {len(messages)} messages and no text")
    return messages


def _parse_json(text: str, column: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise RowError(f"column {column!r}: not JSON ({error.msg}, character {error.pos})") from None
    except (RecursionError, ValueError) as error:  # nested too deep, or a number too long
        raise RowError(f"column {column!r}: not usable JSON ({type(error).__name__})") from None


def _parse_message(item: Any, where: str) -> Message:
    if not isinstance(item, dict):
        raise RowError(f"{where}: a {_kind(item)}, must have a role and a content")
    for key in ("role", "content"):
        if key not in item:
            raise RowError(f"{where}: no {key!r}")
        if not isinstance(item[key], str):
            raise RowError(f"{where}: {key!r} is {_kind(item[key])}, must be a string")
    if not item["role"].strip():
        raise RowError(f"{where}: 'role' is empty")
    return {key: field for key, field in item.items() if field is not None}


def _kind(value: Any) -> str:
    return "null" if value is None else type(value).__name__


def _roles(messages: list[Message]) -> str:
    roles = [shown_role(message["role"]) for message in messages]
    return ", ".join(roles[:10] + ["..."] * (len(roles) > 10))


def shown_role(role: str) -> str:
    return role if role in _ROLES else "(other)"


def _read_template(path: str) -> str:
    try:
        return Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError(
            f"prompt.chat_template: cannot read {path}: {reason}; use auto, none, or a template file"
        ) from error
