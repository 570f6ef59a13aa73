"""What one row's template may use, so that a runaway one ends as a failed row and not as a worker without memory.

A row has a budget of steps (items of loops, calls, a thousand characters handled) and of characters printed; it is the same
for every row and every machine, so that a row that fails always does. Single operations that make much out of little
(repetitions, field widths, `replace`, `join`) are judged by the size of their result before they run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sized
from functools import wraps
from typing import Any

import jinja2
from jinja2 import filters, nodes
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.visitor import NodeTransformer

from batchpaged.errors import RowError

MAX_TEXT_CHARS = 1 << 24  # of one rendered template, and of any text on the way to it
MAX_STEPS = 1_000_000
MAX_RANGE_ITEMS = 1_000_000  # over all uses of range() in one row
_MAX_FIELD_CHARS = 100_000  # width or precision of a formatted value
_MAX_POWER = 1000
_MAX_INTEGER_BITS = 100_000
_CHARS_PER_STEP = 1000
_BUDGET = "the row's budget"  # no template can have a variable of this name
_COUNTED, _CONCAT = "counted items", "text of all"  # nor a filter
_CONVERSION = re.compile(r"%(?:\([^)]*\))?([^a-zA-Z%(]*)")
_CALL_STEPS = 10
_PADDING = ("ljust", "rjust", "center", "zfill", "expandtabs", "to_bytes")  # methods whose number is a size
_FILTER_NUMBERS = {"batch": 100_000, "slice": 100_000, "center": _MAX_FIELD_CHARS, "round": 300}
_SIZES_OF_METHODS = {
    "expandtabs": lambda text, size=8: len(text) + text.count("\t") * size,
    "replace": lambda text, old, new, count=-1: _size_replaced(text, old, new, count),
    "join": lambda text, items: sum(weigh(item) + len(text) for item in items) if isinstance(items, list) else 0,
    "translate": lambda text, table: len(text) * max(map(weigh, table.values()), default=1) if table else len(text),
}


class Budget:
    """Of one row."""

    def __init__(self) -> None:
        self._num_steps = self._num_chars = self._num_range_items = 0

    def take_steps(self, number: int, num_chars: int = 0) -> None:
        self._num_steps += number + num_chars // _CHARS_PER_STEP
        if self._num_steps > MAX_STEPS:
            raise RowError(f"its loops and calls take more than {MAX_STEPS} steps")

    def take_chars(self, number: int) -> None:
        self._num_chars += number
        if self._num_chars > MAX_TEXT_CHARS:
            raise RowError(f"the text is longer than {MAX_TEXT_CHARS} characters")

    def range(self, *arguments: int) -> range:
        """Python's, for what is left of the row's items."""
        items = range(*arguments)
        self._num_range_items += len(items)
        if self._num_range_items > MAX_RANGE_ITEMS:
            raise RowError(f"its loops over range() pass {MAX_RANGE_ITEMS} items")
        return items


def with_budget(values: dict[str, Any]) -> dict[str, Any]:
    """The row's values, as a template of `BoundedEnvironment` is rendered with."""
    budget = Budget()
    return {**values, "range": budget.range, _BUDGET: budget}


def budget_of(context: Context) -> Budget:
    return context.parent[_BUDGET]


def bound(tree: nodes.Template, environment: jinja2.Environment) -> None:
    """Let loops count their items, and `~` look at what it joins."""
    _Bounder().visit(tree)
    tree.set_environment(environment)


class _Bounder(NodeTransformer):
    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.iter = _filter(node.iter, _COUNTED)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:
        self.generic_visit(node)
        return _filter(nodes.List(node.nodes, lineno=node.lineno), _CONCAT)


def _filter(node: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        del self.globals["range"]  # every row has its own, so the name has to count as a variable
        for name, limit in _FILTER_NUMBERS.items():
            self.filters[name] = _limited(self.filters[name], name, limit)
        more = {"indent": _indent, "replace": _replace, "format": _format, "join": _join, _COUNTED: _count, _CONCAT: _concat}
        self.filters.update(more)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if isinstance(left, int | float) and isinstance(right, int | float):
            _check_numbers(operator, left, right)
        else:
            size = _size_of_result(operator, left, right)
            _check_size(size, "a repetition" if operator == "*" else "a text or list")
            budget_of(context).take_steps(1, size)
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: B902, N805 - as in Jinja2
        budget_of(__context).take_steps(_CALL_STEPS)
        _check_method(__obj, args, kwargs)
        return super().call(__context, __obj, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        if super().wrap_str_format(value) is None:
            return None
        is_map = value.__name__ == "format_map"

        def formatted(*args: Any, **kwargs: Any) -> str:
            return _Formatter(self).vformat(value.__self__, () if is_map else args, args[0] if is_map else kwargs)

        return formatted


class _Formatter(SandboxedFormatter):
    """For one text."""

    _num_chars = 0

    def format_field(self, value: Any, format_spec: str) -> str:
        _check_field(format_spec)
        text = super().format_field(value, format_spec)
        self._num_chars += len(text)
        _check_size(self._num_chars, "a formatted text")
        return text


# --- sizes ---


def weigh(value: Any) -> int:
    """Characters that the value takes when it is written out, about; no more than is needed to see that it is too much."""
    size, left = 0, [value]
    while left and size <= MAX_TEXT_CHARS:
        item = left.pop()
        size += len(item) if isinstance(item, str | bytes) else 4
        if isinstance(item, dict):
            left += [*item.keys(), *item.values()]
        elif isinstance(item, list | tuple | set):
            left += item
    return size


def check_weight(value: Any) -> None:
    _check_size(weigh(value), "a value")


def _check_size(size: int, what: str) -> None:
    if size > MAX_TEXT_CHARS:
        raise RowError(f"{what} longer than {MAX_TEXT_CHARS} characters or items")


def _check_numbers(operator: str, left: float, right: float) -> None:
    if operator == "**" and not (_is_small(left) and _is_small(right)):
        raise RowError(f"a power of numbers above {_MAX_POWER}")
    if operator == "*" and isinstance(left, int) and isinstance(right, int):
        if left.bit_length() + right.bit_length() > _MAX_INTEGER_BITS:
            raise RowError(f"a number of more than {_MAX_INTEGER_BITS} bits")


def _is_small(value: float) -> bool:
    return isinstance(value, float) or abs(value) <= _MAX_POWER


def _size_of_result(operator: str, left: Any, right: Any) -> int:
    if operator == "*":
        sized, count = (right, left) if isinstance(left, int) else (left, right)
        return _length(sized) * count if isinstance(count, int) else 0
    if operator == "%":
        return _size_formatted(left, right) if isinstance(left, str | bytes) else 0
    return _length(left) + _length(right) if operator == "+" else 0


def _length(value: Any) -> int:
    return len(value) if isinstance(value, Sized) and not isinstance(value, jinja2.Undefined) else 0


def _size_formatted(text: str | bytes, arguments: Any) -> int:
    """Of `text % arguments`, at most. Raises RowError for a width that nobody means."""
    text = text if isinstance(text, str) else text.decode("latin-1")
    conversions = _CONVERSION.findall(text)
    widths = [_check_field(conversion) for conversion in conversions]
    values = list(arguments.values() if isinstance(arguments, dict) else _as_tuple(arguments))
    if any("*" in conversion for conversion in conversions):
        widths += [_check_width(abs(value)) for value in values if isinstance(value, int)]
    return len(text) + sum(widths) + len(conversions) * max(map(weigh, values), default=0)


def _as_tuple(arguments: Any) -> tuple:
    return arguments if isinstance(arguments, tuple) else (arguments,)


def _check_field(spec: str) -> int:
    """-> sum of the numbers in it"""
    return sum(_check_width(int(digits[:10])) for digits in re.findall(r"\d+", spec))


def _check_width(number: int) -> int:
    if number > _MAX_FIELD_CHARS:
        raise RowError(f"formats a value with more than {_MAX_FIELD_CHARS} characters")
    return number


def _check_method(method: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    """Methods of texts, bytes and numbers."""
    owner = getattr(method, "__self__", None)
    if not isinstance(owner, str | bytes | int):
        return
    numbers = [number for number in (*args, *kwargs.values()) if isinstance(number, int)]
    if method.__name__ in _PADDING and max(numbers, default=0) > MAX_TEXT_CHARS:
        raise RowError(f"{method.__name__}() with a number above {MAX_TEXT_CHARS}")
    size_of = _SIZES_OF_METHODS.get(method.__name__)
    if size_of is not None and isinstance(owner, str | bytes):
        _check_size(_size_or_zero(size_of, owner, args, kwargs), f"a text made by {method.__name__}()")


def _size_or_zero(size_of: Callable[..., int], owner: Any, args: tuple, kwargs: dict[str, Any]) -> int:
    """Arguments that are wrong are for the method itself to refuse."""
    try:
        return size_of(owner, *args, **kwargs)
    except (TypeError, AttributeError):
        return 0


def _size_replaced(text: str, old: str, new: str, count: int = -1) -> int:
    number = text.count(old)
    number = number if count < 0 else min(number, count)
    return len(text) + number * max(0, len(new) - len(old))


# --- filters ---


def _limited(function: Callable[..., Any], name: str, limit: int) -> Callable[..., Any]:
    @wraps(function)  # with what says which arguments Jinja2 passes
    def limited(*args: Any, **kwargs: Any) -> Any:
        if any(isinstance(number, int) and abs(number) > limit for number in (*args[1:], *kwargs.values())):
            raise RowError(f"{name} with a number above {limit}")
        return function(*args, **kwargs)

    return limited


def _indent(value: str, width: int | str = 4, *arguments: Any, **options: Any) -> str:
    num_lines = str(value).count("\n") + 1
    _check_size(len(value) + num_lines * (width if isinstance(width, int) else len(width)), "an indented text")
    return filters.do_indent(value, width, *arguments, **options)


@jinja2.pass_eval_context
def _replace(context: nodes.EvalContext, value: str, old: str, new: str, count: int | None = None) -> str:
    _check_size(_size_replaced(str(value), str(old), str(new), -1 if count is None else count), "a text made by replace")
    return filters.do_replace(context, value, old, new, count)


def _format(value: str, *args: Any, **kwargs: Any) -> str:
    _check_size(_size_formatted(str(value), kwargs or args), "a formatted text")
    return filters.do_format(value, *args, **kwargs)


@jinja2.pass_eval_context
def _join(context: nodes.EvalContext, value: Any, separator: str = "", attribute: str | int | None = None) -> str:
    if isinstance(value, str):
        raise RowError("join over a string, which is text and not a list")
    if attribute is not None:
        value = map(filters.make_attrgetter(context.environment, attribute), value)
    return _joined(value, str(separator))


@jinja2.pass_context
def _concat(context: Context, values: list[Any]) -> str:
    text = _joined(values, "")
    budget_of(context).take_steps(1, len(text))
    return text


def _joined(values: Iterable[Any], separator: str) -> str:
    texts, size = [], 0
    for value in values:
        check_weight(value)
        texts.append(str(value))
        size += len(texts[-1]) + len(separator)
        _check_size(size, "a joined text")
    return separator.join(texts)


@jinja2.pass_context
def _count(context: Context, items: Any) -> Any:
    budget = budget_of(context)
    if isinstance(items, Sized) and not isinstance(items, jinja2.Undefined):
        budget.take_steps(len(items))
        return items
    return _count_each(items, budget)


def _count_each(items: Iterable[Any], budget: Budget) -> Iterator[Any]:
    for item in items:
        budget.take_steps(1)
        yield item
