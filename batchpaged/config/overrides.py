"""`--set key.sub=value`: values put over a pipeline before it is checked."""

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy

from batchpaged.config.problems import ABSENT, Problem
from batchpaged.config.yaml_text import read_yaml
from batchpaged.errors import ConfigError

_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")


def apply_overrides(mapping: Mapping, overrides: Sequence[str]) -> tuple[dict, frozenset[str], list[Problem]]:
    """(new data, dotted keys that were set, problems of the overrides themselves); the mapping stays as it is.

    A key set twice keeps its last value, as on any command line.
    """
    data, keys, problems = deepcopy(dict(mapping)), set(), []
    for override in overrides:
        key, equals, text = override.partition("=")
        key = key.strip() or "(no key)"
        value = _value(key, text) if equals and _KEY.fullmatch(key) else _malformed(key)
        keys.add(key)
        if isinstance(value, Problem):
            problems.append(value)
        else:
            _put(data, key.split("."), value)
    return data, frozenset(keys), problems


def is_or_holds(outer: str, inner: str) -> bool:
    """Whether `outer` is the key `inner` or a section or list around it."""
    return inner == outer or inner.startswith((f"{outer}.", f"{outer}["))


def _malformed(key: str) -> Problem:
    return Problem(key, ABSENT, "must read key=value, like engine.block_size=32")


def _value(key: str, text: str) -> object:
    try:
        return read_yaml(text, "value").data
    except ConfigError as error:
        return Problem(key, text, str(error).partition(": ")[2])


def _put(data: dict, path: Sequence[str], value: object) -> None:
    """Sets the value in place; sections on the way are made where there are none."""
    for part in path[:-1]:
        if not isinstance(data.get(part), dict):
            data[part] = {}
        data = data[part]
    data[path[-1]] = value
