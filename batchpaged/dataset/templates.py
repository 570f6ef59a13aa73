"""Jinja2 templates over a row's columns, in a sandbox, with every mistake turned into that row's error.

What differs from plain Jinja2, and why:

- A null is not printed as `None`, nor NaN, which is how pandas writes a missing number, as `nan`. Both behave as
  undefined: using one fails the row and names the column, while `{% if x %}`, `x is none`, `x is defined`,
  `x or "..."` and `x | default("...")` handle it.
- `join` over a string fails the row: it would put the separator between letters.
- Printing a list, a mapping, bytes or a method fails the row: the text would be Python's spelling of it.
- `tojson` writes plain JSON; Jinja2's own escapes `<`, `>` and `&` for HTML, which would edit the prompt.
- There is no `random` and no `lipsum`: the same row gives the same prompt every time.
- Loops, calls and the length of texts are bounded (template_bounds.py), so that a runaway template ends.

As in Jinja2, one newline at the very end of a template is dropped (a YAML block scalar always ends in one), and nothing
else. A column named like a Jinja2 function (range, dict, namespace, cycler, joiner) cannot be reached by that name.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import jinja2
from jinja2 import meta, nodes
from jinja2.runtime import Context

from batchpaged.dataset.template_bounds import BoundedEnvironment, bound
from batchpaged.dataset.template_budget import budget_of, with_budget
from batchpaged.dataset.template_sizes import MAX_TEXT_CHARS, check_weight
from batchpaged.errors import ConfigError, RowError

MAX_INDENT = 100
_SAFE_MESSAGES = (TypeError, ZeroDivisionError, OverflowError)  # their messages name types, never values

_TYPE_NAMES = frozenset(
    {"str", "int", "float", "bool", "list", "dict", "tuple", "bytes", "datetime", "date", "Decimal"}
)


class NullUsedError(jinja2.UndefinedError):
    """A null was printed, joined or computed with; the message names the column."""


class NullValue(jinja2.StrictUndefined):
    """A null as a template sees it: undefined and false; anything that needs its value raises NullUsedError."""

    __slots__ = ()

    def __init__(self, name: str, kind: str = "null") -> None:
        super().__init__(hint=f"{name} is {kind}", exc=NullUsedError)

    def __repr__(self) -> str:  # printed inside a list, it must not pass for a value
        return self._fail_with_undefined_error()

    def __bool__(self) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return _is_none(other)

    def __ne__(self, other: object) -> bool:
        return not _is_none(other)

    def __hash__(self) -> int:
        return hash(None)


class TextTemplate:
    """One compiled template: compile once, render for every row. Rendering changes nothing; threads may share it."""

    def __init__(self, source: str, key: str, edit: Callable[[nodes.Template], None] = lambda tree: None) -> None:
        """`key` is where the template stands in the pipeline file. Raises ConfigError if it does not compile.

        `edit` may change the syntax tree before it is compiled.
        """
        self._source = source
        self._key = key
        environment = make_environment()
        try:
            tree = environment.parse(source)
            edit(tree)
            names, printed = meta.find_undeclared_variables(tree), _printed(tree)
            bound(tree, environment)
            self._template = environment.from_string(tree)
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(f"{key}, line {error.lineno}: {error.message}") from error
        for node in tree.find_all((nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)):
            raise ConfigError(
                f"{key}, line {node.lineno}: a template stands alone; write out what it includes or extends"
            )
        self.variables = frozenset(names - {"range"})
        self.printed = self.variables & printed  # as they are, in every row that gets so far

    def render(self, values: Mapping[str, Any]) -> str:
        """The text for one row. Raises RowError, which never holds a value of the row."""
        try:
            return self._join(values)
        except Exception as error:  # a template is a program: it can fail in any way
            raise self._failed(error) from None

    def render_until(self, values: Mapping[str, Any], end: type[Exception]) -> tuple[str, bool]:
        """The text before the first use of a value that raises `end`, and whether that is all. Raises RowError as `render`."""
        pieces: list[str] = []
        try:
            for piece in self._template.generate(with_budget(values)):
                pieces.append(piece)
        except end:
            return "".join(pieces), False
        except Exception as error:
            raise self._failed(error) from None
        return "".join(pieces), True

    def _join(self, values: Mapping[str, Any]) -> str:
        pieces, size = [], 0
        for piece in self._template.generate(with_budget(values)):
            pieces.append(piece)
            size += len(piece)
            if size > MAX_TEXT_CHARS:
                raise RowError(f"the text is longer than {MAX_TEXT_CHARS} characters")
        return "".join(pieces)

    def _failed(self, error: Exception) -> RowError:
        reason = str(error) if isinstance(error, RowError) else self._describe(error)
        return RowError(f"{self._key}{_line(error)}: {reason}")

    def _describe(self, error: Exception) -> str:
        if isinstance(error, NullUsedError):
            return str(error)
        if isinstance(error, jinja2.UndefinedError | jinja2.exceptions.SecurityError):
            return self._describe_lookup(str(error))
        if isinstance(error, _SAFE_MESSAGES):
            return f"{type(error).__name__}: {str(error)[:200]}"
        return type(error).__name__

    def _describe_lookup(self, message: str) -> str:
        """A failed lookup names what was looked up; that may come from the row, so it is shown only if the template has
        it.
        """
        quoted = message.split("'")[1::2]
        is_known = all(name in self._source or name.removesuffix(" object") in _TYPE_NAMES for name in quoted)
        return message[:200] if is_known and '"' not in message else "a name or element that the row does not have"


def _printed(tree: nodes.Template) -> set[str]:
    """Names that stand alone in braces, outside of loops and conditions, and are never given another value."""
    outputs = (node for node in tree.body if isinstance(node, nodes.Output))
    names = {child.name for node in outputs for child in node.nodes if isinstance(child, nodes.Name)}
    return names - {node.name for node in tree.find_all(nodes.Name) if node.ctx != "load"}


def wrap_nulls(value: Any, name: str) -> Any:
    """The value with every null and NaN inside it replaced by a NullValue that knows its place, as in `contexts[2]`."""
    if value is None:
        return NullValue(name)
    if isinstance(value, float) and math.isnan(value):
        return NullValue(name, "NaN")
    if isinstance(value, list):
        return [wrap_nulls(item, f"{name}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, dict):
        return {key: wrap_nulls(item, f"{name}.{key}") for key, item in value.items()}
    return value


def make_environment() -> BoundedEnvironment:
    environment = BoundedEnvironment(
        undefined=jinja2.StrictUndefined, autoescape=False, keep_trailing_newline=False, finalize=_check_printable
    )
    del environment.globals["lipsum"], environment.filters["random"]
    environment.tests["none"] = _is_none
    environment.filters["tojson"] = _to_json
    return environment


@jinja2.pass_context
def _check_printable(context: Context, value: Any) -> Any:
    """Called for everything a template prints."""
    if isinstance(value, str):
        budget_of(context).take_chars(len(value))
    if isinstance(value, list | tuple | dict | set | bytes):
        hint = "use a filter such as join or tojson" if not isinstance(value, bytes) else "decode it in the input"
        raise RowError(f"prints a {type(value).__name__} as it is; {hint}")
    if value is None or (callable(value) and not isinstance(value, jinja2.Undefined)):
        raise RowError("prints a method or nothing; a field named like a method is written x['name']")
    return value


def _is_none(value: object) -> bool:
    return value is None or isinstance(value, NullValue)


def _to_json(value: Any, indent: int | None = None) -> str:
    check_weight(value)
    if indent is not None and indent > MAX_INDENT:
        raise RowError(f"tojson with an indent above {MAX_INDENT}")
    return json.dumps(value, ensure_ascii=False, indent=indent, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, NullValue):
        return None
    if hasattr(value, "isoformat"):
        return value.isoformat()
    raise TypeError(f"a {type(value).__name__} cannot be written as JSON")


def _line(error: BaseException) -> str:
    """Where in the template it failed; Jinja2 rewrites tracebacks so that they hold the template's own lines."""
    lines = []
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            lines.append(trace.tb_lineno)
        trace = trace.tb_next
    return f", line {lines[-1]}" if lines else ""
