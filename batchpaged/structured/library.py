"""llguidance, and its messages on one line."""

import json
import re
from functools import cache
from typing import Any

import numpy as np

_UNSUPPORTED = "Unimplemented keys: "
_EMPTY = "NoExtensionBias"  # what its parser calls a start after which nothing may follow


def matcher() -> Any:
    from llguidance import LLMatcher

    return LLMatcher


def first_error(grammar: str) -> str | None:
    """What llguidance says of a grammar that it cannot follow."""
    is_error, messages = matcher().validate_grammar_with_warnings(grammar)
    return messages[0] if is_error else None


def start_fault(grammar: str) -> str | None:
    """Why nothing can be written that follows this grammar, though it is one: said only of the first two bytes."""
    follower = matcher()(_bytes(), grammar, log_level=0)
    for _ in range(2):
        mask = np.frombuffer(follower.compute_bitmask(), dtype=np.uint8)
        if follower.is_error() or follower.is_stopped():
            break
        follower.consume_token(int(np.flatnonzero(np.unpackbits(mask, bitorder="little"))[0]))
    if not follower.is_error():
        return None
    reason = follower.get_error().partition("\n")[0]
    return "nothing can fit it: it contradicts itself, or has no end" if reason == _EMPTY else f"is too large ({reason[:200]})"


@cache
def _bytes() -> Any:
    """A tokenizer whose tokens are bytes: what can be written at all needs no model's."""
    from llguidance import LLTokenizer

    return LLTokenizer("byte")


def unsupported_keys(message: str) -> list[str]:
    """Keywords of JSON schema that the message is about, never others."""
    return json.loads(message.removeprefix(_UNSUPPORTED)) if message.startswith(_UNSUPPORTED) else []


def plain(message: str) -> str:
    """The message's first reason, and for a regular expression the place in it."""
    lines = message.splitlines()
    errors = [line.strip().removeprefix("error: ") for line in lines if line.strip().startswith("error: ")]
    reason = (errors or [line.strip() for line in lines])[0][:200]
    return f"cannot be followed: {reason}{_place(lines)}"


def _place(lines: list[str]) -> str:
    """Under a regular expression, four characters in, stand carets."""
    marks = [(index, line) for index, line in enumerate(lines) if re.fullmatch(r" {4} *\^+", line)]
    if not marks or marks[0][0] == 0:
        return ""
    index, line = marks[0]
    start = len(line) - len(line.lstrip()) - 4
    text = lines[index - 1][4:][start:]
    return f", at character {start + 1}: {text if len(text) <= 30 else text[:27] + '...'}"
