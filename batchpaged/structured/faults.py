"""What is wrong with a JSON schema, all of it and where: llguidance stops at the first fault and names no place.

Each schema within the schema is tried alone, with what it holds made empty, so that a fault is found at its own place.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from batchpaged.structured.library import first_error, matcher, plain, unsupported_keys

# llguidance takes it, but where a pattern fits no name but those of `properties` its grammar leads nowhere.
_LEADS_NOWHERE = "patternProperties"
_BY_NAME = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_NO_SCHEMAS = ("enum", "const", "default", "examples", "x-guidance")


@dataclass(frozen=True)
class Fault:
    """At one place of the schema: keywords that are not supported, or what else is wrong."""

    pointer: str  # JSON pointer of the schema within the schema; empty for the whole
    keywords: tuple[str, ...] = ()
    words: str = ""


def find_faults(schema: dict[str, Any]) -> list[Fault]:
    """In the schema's order. Empty where no part has a fault by itself. Raises RecursionError."""
    options = {key: schema[key] for key in ("x-guidance", "$defs", "definitions") if key in schema}
    return [fault for pointer, part in _parts(schema, "") for fault in _faults_of(pointer, part, options)]


def holds_pattern_properties(schema: Any) -> bool:
    """As a keyword; a property of that name is none. Raises RecursionError."""
    return any(_LEADS_NOWHERE in part for _, part in _parts(schema, ""))


def _parts(schema: Any, pointer: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema in the schema, itself first."""
    if isinstance(schema, list):
        for index, item in enumerate(schema):
            yield from _parts(item, f"{pointer}/{index}")
    if not isinstance(schema, dict):
        return
    yield pointer, schema
    for key, value in schema.items():
        place = f"{pointer}/{_escaped(key)}"
        if key in _BY_NAME and isinstance(value, dict):
            for name, part in value.items():
                yield from _parts(part, f"{place}/{_escaped(name)}")
        elif key not in _NO_SCHEMAS:
            yield from _parts(value, place)


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _faults_of(pointer: str, part: dict[str, Any], options: dict[str, Any]) -> Iterator[Fault]:
    hollow = {key: _emptied(key, value) for key, value in part.items() if not _is_elsewhere(key, value)}
    own_options = {key: value for key, value in options.items() if key == "x-guidance"}
    keywords = [_LEADS_NOWHERE] if hollow.pop(_LEADS_NOWHERE, None) is not None else []
    if "oneOf" in part and _error(json.dumps({**options, "oneOf": part["oneOf"]})).startswith("oneOf"):
        keywords.append("oneOf")
    error = _error(json.dumps({**own_options, **hollow}))
    found = unsupported_keys(error)
    if found:
        keywords += found
        error = _error(json.dumps({**own_options, **{key: value for key, value in hollow.items() if key not in found}}))
    if keywords:
        yield Fault(pointer, tuple(sorted(keywords)))
    if error:
        yield Fault(pointer, words=plain(error))


def _is_elsewhere(key: str, value: Any) -> bool:
    """What is tried in another place, or as a whole."""
    return key in ("oneOf", "$defs", "definitions") or (key == "$ref" and str(value).startswith("#"))


def _emptied(key: str, value: Any) -> Any:
    if key in _NO_SCHEMAS:
        return value
    if isinstance(value, dict):
        return {}
    return [{} if isinstance(item, dict) else item for item in value] if isinstance(value, list) else value


@lru_cache(maxsize=1024)
def _error(schema: str) -> str:
    """Empty where there is none."""
    return first_error(matcher().grammar_from_json_schema(schema)) or ""
