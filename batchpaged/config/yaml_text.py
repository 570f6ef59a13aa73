"""YAML to plain values, safely, with the line of every key.

Differs from PyYAML's safe loader where that surprises: a doubled key is an error, `1e-3` is a number, and a date
stays the text that was written.
"""

import re
from dataclasses import dataclass

import yaml

from batchpaged.errors import ConfigError

_TAG = "tag:yaml.org,2002:"
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$|[-+]?\.(inf|Inf|INF)$|\.(nan|NaN|NAN)$")

_END = "'<stream end>'"  # as PyYAML calls it


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in (f"{_TAG}timestamp", f"{_TAG}float")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


_Loader.add_implicit_resolver(f"{_TAG}float", _FLOAT, list("-+.0123456789"))


@dataclass(frozen=True)
class Document:
    data: object
    lines: dict[str, int]  # dotted key -> line, from 1


def read_yaml(text: str, origin: str) -> Document:
    """The one document in `text`. Raises ConfigError with origin, line and column; nothing in YAML can run code."""
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        lines, doubled = _walk(node)
        if doubled:
            raise ConfigError("\n".join(f"{origin}:{line}: {problem}" for line, problem in doubled))
        return Document(None if node is None else loader.construct_document(node), lines)
    except yaml.MarkedYAMLError as error:
        raise ConfigError(_syntax_error(error, origin)) from None
    except yaml.reader.ReaderError as error:
        raise ConfigError(f"{origin}: no text: character {error.position} is not allowed in YAML") from None
    except (RecursionError, ValueError) as error:
        raise ConfigError(f"{origin}: not valid YAML: {type(error).__name__}") from None


def _syntax_error(error: yaml.MarkedYAMLError, origin: str) -> str:
    mark = error.problem_mark or error.context_mark
    place = f"{origin}:{mark.line + 1}:{mark.column + 1}" if mark else origin
    problem = ", ".join(part for part in (error.context, error.problem) if part)
    hint = "; indent with spaces" if "\\t" in problem else ""
    return f"{place}: not valid YAML: {problem.replace(_END, 'its end')}{hint}"


def _walk(root: yaml.Node | None) -> tuple[dict[str, int], list[tuple[int, str]]]:
    """Lines by dotted key, and (line, problem) of doubled keys."""
    lines: dict[str, int] = {}
    doubled: list[tuple[int, str]] = []
    waiting = [("", root)]
    seen: set[int] = set()  # an alias leads to a node a second time, and may lead back to its own parent
    while waiting:
        path, node = waiting.pop()
        if isinstance(node, yaml.MappingNode) and id(node) not in seen:
            seen.add(id(node))
            waiting += _children(path, node, lines, doubled)
    return lines, sorted(doubled)


def _children(path: str, node: yaml.MappingNode, lines: dict, doubled: list) -> list[tuple[str, yaml.Node]]:
    first: dict[str, int] = {}
    children = []
    for key, value in node.value:
        name, line = str(key.value), key.start_mark.line + 1
        full = f"{path}.{name}" if path else name
        if name in first:
            doubled.append((line, f"{full} is given twice, first in line {first[name]}"))
        first.setdefault(name, line)
        lines[full] = line
        children.append((full, value))
    return children
