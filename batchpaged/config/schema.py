"""The pipeline file's JSON schema: for editors, and the one source of what an error message says is allowed."""

import json
from collections.abc import Iterator
from copy import deepcopy
from functools import cache

from batchpaged.config.models import Pipeline

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_BOUNDS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
_NOUNS = {"integer": "an integer", "number": "a number"}


def pipeline_json_schema() -> dict:
    """JSON schema (2020-12) of a pipeline file, a description with every key."""
    return deepcopy(_schema())


@cache
def _schema() -> dict:
    schema = _tidy(Pipeline.model_json_schema())
    return {"$schema": DIALECT, "title": "batchpaged pipeline file", **schema}


def _tidy(node: object) -> object:
    """The same whichever pydantic wrote it: without titles, which repeat the key, and with whole bounds as integers."""
    if isinstance(node, list):
        return [_tidy(item) for item in node]
    if not isinstance(node, dict):
        return node
    is_doubled = "const" in node and "enum" in node
    return {
        key: int(value) if key in _BOUNDS and float(value).is_integer() else _tidy(value)
        for key, value in node.items()
        if not (key == "title" and isinstance(value, str)) and not (key == "enum" and is_doubled)
    }


def keys_of(path: tuple[str | int, ...]) -> tuple[str, ...]:
    """Keys of the section at `path`; none where no section is."""
    node = node_at(path)
    return tuple(node.get("properties", ())) if node else ()


def all_keys() -> Iterator[str]:
    """Every dotted key, sections before what is in them."""
    return _keys_below(())


def _keys_below(section: tuple[str, ...]) -> Iterator[str]:
    for name in keys_of(section):
        yield ".".join((*section, name))
        yield from _keys_below((*section, name))


def node_at(path: tuple[str | int, ...]) -> dict | None:
    """The part of the schema that the value at `path` has to meet; None where the path leads nowhere."""
    node: dict | None = _schema()
    for part in path:
        node = _child(node, part)
        if node is None:
            return None
    return node


def _child(node: dict, part: str | int) -> dict | None:
    for option in node.get("anyOf", [node]):
        option = _resolved(option)
        child = option.get("items") if isinstance(part, int) else option.get("properties", {}).get(part)
        if child is not None:
            return _section_of(child)
    return None


def _section_of(node: dict) -> dict:
    """The section behind a reference, or behind `section or null`; other nodes as they are."""
    options = [option for option in node.get("anyOf", [node]) if "$ref" in option]
    return _resolved(options[0]) if options else node


def _resolved(node: dict) -> dict:
    return _schema()["$defs"][node["$ref"].rpartition("/")[2]] if "$ref" in node else node


def types_of(node: dict) -> set[str]:
    """JSON types that the node takes."""
    return {option["type"] for option in node.get("anyOf", [node]) if "type" in option}


def choices_of(node: dict) -> list[str]:
    """The words that the node takes, as far as they can be listed."""
    options = node.get("anyOf", [node])
    words = [word for option in options for word in (*option.get("enum", ()), option.get("const"))]
    return [word for word in words if isinstance(word, str)]


def allowed(node: dict) -> str:
    """What the node takes, in words: `an integer >= 1 or null`."""
    if "anyOf" in node:
        return " or ".join(allowed(option) for option in node["anyOf"])
    if "enum" in node:
        return "one of " + ", ".join(map(str, node["enum"]))
    if "const" in node:
        return str(node["const"])
    return _allowed_type(_resolved(node))


def _allowed_type(node: dict) -> str:
    kind = node["type"]
    if kind in _NOUNS:
        bounds = [f"{sign} {node[name]}" for name, sign in _BOUNDS.items() if name in node]
        return " ".join([_NOUNS[kind], " and ".join(bounds)]).strip()
    if kind == "array":
        return f"a list, each item {allowed(node['items'])}"
    if kind == "object":
        return "a mapping" + (" with keys " + ", ".join(node["properties"]) if "properties" in node else "")
    if kind == "string":
        return _allowed_string(node)
    return {"boolean": "true or false", "null": "null"}[kind]


def _allowed_string(node: dict) -> str:
    if "examples" in node:
        return f"a string like {json.dumps(node['examples'][0])}"
    return "a non-empty string" if "minLength" in node else "a string"
