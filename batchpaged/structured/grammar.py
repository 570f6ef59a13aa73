"""Grammars as text, in llguidance's own notation, and what is wrong with one in words.

JSON is written as Python's json.dumps writes it, on one line: with free white space a model can fill its completion with
nothing else, and fewer tokens are forced. `x-guidance` in a schema overrides that, as llguidance documents it.
"""

import json
from functools import lru_cache
from typing import Any

from batchpaged.config.structured import StructuredConfig
from batchpaged.errors import ConfigError
from batchpaged.structured.faults import Fault, find_faults, holds_pattern_properties
from batchpaged.structured.library import first_error, matcher, plain, start_fault

_JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_INSTEAD = {
    "oneOf": "anyOf",
    "not": "an enum or a pattern of what may be",
    "if": "anyOf of the cases",
    "patternProperties": "properties by name",
}


class UnfollowableSchema(ValueError):
    """Why, in our own words: they never hold what the schema says, so they can be a row's reason.

    `faults`: the same by place, where it is known; places are names of the schema's own.
    """

    def __init__(self, words: str, faults: tuple[Fault, ...] = ()) -> None:
        super().__init__(words)
        self.faults = faults


def grammar_of(config: StructuredConfig | None) -> str | None:
    """The grammar of all rows; None where there is none, or each row has its own. Raises ConfigError naming the key."""
    if config is None or config.column is not None:
        return None
    key, build = _source(config)
    try:
        return build()
    except ValueError as error:
        words = _with_places(error) if isinstance(error, UnfollowableSchema) else error
        raise ConfigError(f"sampling.structured.{key}{file_of(config)}: {words}") from error


def file_of(config: StructuredConfig) -> str:
    """`, schema.json` after a key, where the schema is in a file."""
    return f", {config.schema_file}" if config.schema_file is not None else ""


def _source(config: StructuredConfig) -> tuple[str, Any]:
    if config.json_schema is not None:
        return "json_schema", lambda: schema_grammar(config.json_schema)
    if config.regex is not None:
        return "regex", lambda: _checked(matcher().grammar_from_regex(config.regex))
    return "choices", lambda: _checked(matcher().grammar_from_lark(_choices(config.choices)))


def _choices(choices: tuple[str, ...]) -> str:
    return "start: " + " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)


@lru_cache(maxsize=256)
def schema_grammar(text: str) -> str:
    """Raises UnfollowableSchema; or another ValueError, in llguidance's words, which may repeat what the schema says."""
    try:
        schema = _parse(text)
        if holds_pattern_properties(schema):
            raise _unfollowable(schema)
        grammar = matcher().grammar_from_json_schema(text, defaults=_JSON_STYLE)
        error = first_error(grammar)
        if error is not None:
            raise _unfollowable(schema, error)
        return _startable(grammar)
    except RecursionError:
        raise UnfollowableSchema("is nested too deeply") from None


def _unfollowable(schema: dict[str, Any], error: str | None = None) -> ValueError:
    """`error` is llguidance's, of the whole schema; it says only the first of all."""
    faults = tuple(find_faults(schema))
    keywords = sorted({keyword for fault in faults for keyword in fault.keywords})
    if keywords:
        return UnfollowableSchema(f"needs {', '.join(keywords)}, which llguidance does not support", faults)
    words = "; ".join(map(_fault, faults)) if faults else plain(error or "")
    return ValueError(words)


def _with_places(error: UnfollowableSchema) -> str:
    keywords = {keyword for fault in error.faults for keyword in fault.keywords}
    if not keywords:
        return str(error)
    advice = ", ".join(f"for {key} {instead}" for key, instead in _INSTEAD.items() if key in keywords)
    way_out = f"Leave them out, or say it otherwise{f': {advice}' * bool(advice)}; docs/structured.md says what is supported"
    return f"llguidance does not support all of it: {'; '.join(map(_fault, error.faults))}. {way_out}"


def _fault(fault: Fault) -> str:
    return f"at {fault.pointer or 'its top'}: {', '.join(fault.keywords) or fault.words}"


def _parse(text: str) -> dict[str, Any]:
    try:
        schema = json.loads(text)
    except ValueError:
        raise UnfollowableSchema("is not JSON") from None
    if not isinstance(schema, dict):
        raise UnfollowableSchema("is no JSON object, so no JSON schema")
    return schema


def _checked(grammar: str) -> str:
    error = first_error(grammar)
    if error is not None:
        raise ValueError(plain(error))
    return _startable(grammar)


def _startable(grammar: str) -> str:
    fault = start_fault(grammar)
    if fault is not None:
        raise UnfollowableSchema(fault)
    return grammar
