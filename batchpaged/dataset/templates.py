"""Jinja2 templates over a row's columns, in a sandbox, with every mistake turned into that row's error.

What differs from plain Jinja2, and why:

- A null is not printed as `None`, nor NaN, which is how pandas writes a missing number, as `nan`. Both behave as
  undefined: using one fails the row and names the column, while `{% if x %}`, `x is none`, `x is defined`,
  `x or "..."` and `x | default("...")` handle it.
- `join` over a string fails the row: it would put the separator between letters.
- Printing a list, a mapping, bytes or a method fails the row: the text would be Python's spelling of it.
- `tojson` writes plain JSON; Jinja2's own escapes `<`, `>` and `&` for HTML, which would edit the prompt.
- There is no `random` and no `lipsum`: the same row gives the same prompt every time.
- Loops over `range` and the length of the text are bounded, so that a runaway template ends.

As in Jinja2, one newline at the very end of a template is dropped (a YAML block scalar always ends in one), and nothing
else. A column named like a Jinja2 function (range, dict, namespace, cycler, joiner) cannot be reached by that name.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import jinja2
from jinja2 import filters, meta, nodes
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from batchpaged.errors import ConfigError, RowError

MAX_TEXT_CHARS = 1 << 24  # of one rendered template
MAX_RANGE_ITEMS = 1_000_000  # over all uses of range() in one row
_MAX_POWER = 1000
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
            self._template = environment.from_string(tree)
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(f"{key}, line {error.lineno}: {error.message}") from error
        for node in tree.find_all((nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)):
            raise ConfigError(
                f"{key}, line {node.lineno}: a template stands alone; write out what it includes or extends"
            )
        names = meta.find_undeclared_variables(tree)
        self.variables = frozenset(names - {"range"})
        self._uses_range = "range" in names

    def render(self, values: Mapping[str, Any]) -> str:
        """The text for one row. Raises RowError, which never holds a value of the row."""
        if self._uses_range:
            values = {**values, "range": _make_range()}
        try:
            return self._join(values)
        except RowError as error:
            raise RowError(f"{self._key}{_line(error)}: {error}") from None
        except Exception as error:  # a template is a program: it can fail in any way
            raise RowError(f"{self._key}{_line(error)}: {self._describe(error)}") from None

    def _join(self, values: Mapping[str, Any]) -> str:
        pieces, size = [], 0
        for piece in self._template.generate(values):
            pieces.append(piece)
            size += len(piece)
            if size > MAX_TEXT_CHARS:
                raise RowError(f"the text is longer than {MAX_TEXT_CHARS} characters")
        return "".join(pieces)

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


class _Sandbox(ImmutableSandboxedEnvironment):
    """Also bounds the two operators that can make a huge value out of small ones."""

    intercepted_binops = frozenset(["*", "**"])

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and (not _is_small(left) or not _is_small(right)):
            raise RowError(f"a power of numbers above {_MAX_POWER}")
        for value, count in ((left, right), (right, left)) if operator == "*" else ():
            if isinstance(count, int) and hasattr(value, "__len__") and len(value) * count > MAX_TEXT_CHARS:
                raise RowError(f"a repetition longer than {MAX_TEXT_CHARS} characters")
        return super().call_binop(context, operator, left, right)


def _is_small(value: Any) -> bool:
    return isinstance(value, float) or (isinstance(value, int) and abs(value) <= _MAX_POWER)


def make_environment() -> ImmutableSandboxedEnvironment:
    environment = _Sandbox(
        undefined=jinja2.StrictUndefined, autoescape=False, keep_trailing_newline=False, finalize=_check_printable
    )
    # Every row gets its own bounded range, so the name has to count as a variable.
    del environment.globals["range"], environment.globals["lipsum"], environment.filters["random"]
    environment.tests["none"] = _is_none
    environment.filters["join"] = _join
    environment.filters["tojson"] = _to_json
    return environment


def _check_printable(value: Any) -> Any:
    """Called for everything a template prints."""
    if isinstance(value, list | tuple | dict | set | bytes):
        hint = "use a filter such as join or tojson" if not isinstance(value, bytes) else "decode it in the input"
        raise RowError(f"prints a {type(value).__name__} as it is; {hint}")
    if value is None or (callable(value) and not isinstance(value, jinja2.Undefined)):
        raise RowError("prints a method or nothing; a field named like a method is written x['name']")
    return value


def _is_none(value: object) -> bool:
    return value is None or isinstance(value, NullValue)


@jinja2.pass_eval_context
def _join(context: nodes.EvalContext, value: Any, *arguments: Any, **options: Any) -> str:
    if isinstance(value, str):
        raise RowError("join over a string, which is text and not a list")
    return filters.sync_do_join(context, value, *arguments, **options)


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, NullValue):
        return None
    if hasattr(value, "isoformat"):
        return value.isoformat()
    raise TypeError(f"a {type(value).__name__} cannot be written as JSON")


def _make_range() -> Callable[..., range]:
    """`range` with a budget for one row, so that nested loops end too."""
    left = MAX_RANGE_ITEMS

    def bounded_range(*arguments: int) -> range:
        nonlocal left
        items = range(*arguments)
        left -= len(items)
        if left < 0:
            raise RowError(f"its loops over range() pass {MAX_RANGE_ITEMS} items")
        return items

    return bounded_range


def _line(error: BaseException) -> str:
    """Where in the template it failed; Jinja2 rewrites tracebacks so that they hold the template's own lines."""
    lines = []
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            lines.append(trace.tb_lineno)
        trace = trace.tb_next
    return f", line {lines[-1]}" if lines else ""
