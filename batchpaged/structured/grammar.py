"""Grammars as text, in llguidance's own notation, and what is wrong with one in words.

JSON is written as Python's json.dumps writes it, on one line: with free white space a model can fill its completion with
nothing else, and fewer tokens are forced. `x-guidance` in a schema overrides that, as llguidance documents it.
"""

import json
from functools import lru_cache
from typing import Any

from batchpaged.config.structured import StructuredConfig
from batchpaged.errors import ConfigError

class UnfollowableSchema(ValueError):
    """Why, in our own words: they never hold what the schema says, so they can be a row's reason."""


_JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def grammar_of(config: StructuredConfig | None) -> str | None:
    """The grammar of all rows; None where there is none, or each row has its own. Raises ConfigError naming the key."""
    if config is None or config.column is not None:
        return None
    key, build = _source(config)
    try:
        return build()
    except ValueError as error:
        raise ConfigError(f"sampling.structured.{key}: {error}") from error


def _source(config: StructuredConfig) -> tuple[str, Any]:
    if config.json_schema is not None:
        return "json_schema", lambda: schema_grammar(config.json_schema)
    if config.regex is not None:
        return "regex", lambda: _checked(_matcher().grammar_from_regex(config.regex))
    return "choices", lambda: _checked(_matcher().grammar_from_lark(_choices(config.choices)))


def _choices(choices: tuple[str, ...]) -> str:
    return "start: " + " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)


@lru_cache(maxsize=256)
def schema_grammar(text: str) -> str:
    """Raises UnfollowableSchema; or another ValueError, in llguidance's words, which may repeat what the schema says."""
    try:
        # llguidance takes it, but where a pattern fits no name but those of `properties` its grammar leads nowhere.
        if _holds_key(_parse(text), "patternProperties"):
            raise UnfollowableSchema(_unsupported(["patternProperties"]))
    except RecursionError:
        raise UnfollowableSchema("is nested too deeply") from None
    return _checked(_matcher().grammar_from_json_schema(text, defaults=_JSON_STYLE))


def _parse(text: str) -> dict[str, Any]:
    try:
        schema = json.loads(text)
    except ValueError:
        raise UnfollowableSchema("is not JSON") from None
    if not isinstance(schema, dict):
        raise UnfollowableSchema("is no JSON object, so no JSON schema")
    return schema


def _holds_key(schema: Any, key: str) -> bool:
    """As a keyword; a property of that name is none."""
    if isinstance(schema, list):
        return any(_holds_key(item, key) for item in schema)
    if not isinstance(schema, dict):
        return False
    if key in schema:
        return True
    named = [v for name in ("properties", "$defs", "definitions") for v in _values(schema.get(name))]
    others = [v for name, v in schema.items() if name not in ("properties", "$defs", "definitions", "enum", "const")]
    return any(_holds_key(item, key) for item in (*named, *others))


def _values(mapping: Any) -> list[Any]:
    return list(mapping.values()) if isinstance(mapping, dict) else []


def _checked(grammar: str) -> str:
    is_error, messages = _matcher().validate_grammar_with_warnings(grammar)
    if is_error:
        raise _problem(messages[0])
    return grammar


def _problem(message: str) -> ValueError:
    """llguidance's message, on one line, and in our words where we have some."""
    keys = message.removeprefix("Unimplemented keys: ")
    if keys != message:  # keywords of JSON schema, never others
        return UnfollowableSchema(_unsupported(json.loads(keys)))
    if message.startswith("oneOf"):
        return UnfollowableSchema(_unsupported(["oneOf"]) + "; anyOf is")
    lines = [line.strip() for line in message.splitlines()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return ValueError(f"cannot be followed: {(errors or lines)[0][:200]}")


def _unsupported(keys: list[str]) -> str:
    return f"{', '.join(keys)} {'is' if len(keys) == 1 else 'are'} not supported by llguidance; leave out, or say it otherwise"


def _matcher() -> Any:
    from llguidance import LLMatcher

    return LLMatcher
