"""What one row's template may use, so that a runaway one ends as a failed row and not as a worker without memory.

A row has a budget of steps (items of loops, calls, a thousand characters handled) and of characters printed; it is the same
for every row and every machine, so that a row that fails always does. Single operations that make much out of little
(repetitions, field widths, `replace`, `join`) are judged by the size of their result before they run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from functools import wraps
from typing import Any

import jinja2
from jinja2 import filters, nodes
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.visitor import NodeTransformer

from batchpaged.dataset.template_budget import Budget, budget_of
from batchpaged.dataset.template_sizes import (
    MAX_FIELD_CHARS,
    check_field,
    check_method,
    check_numbers,
    check_size,
    check_weight,
    size_formatted,
    size_of_result,
    size_replaced,
)
from batchpaged.errors import RowError

_COUNTED, _CONCAT = "counted items", "text of all"  # no template can have a filter of this name
_CALL_STEPS = 10
_FILTER_NUMBERS = {"batch": 100_000, "slice": 100_000, "center": MAX_FIELD_CHARS, "round": 300}


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
            check_numbers(operator, left, right)
        else:
            size = size_of_result(operator, left, right)
            check_size(size, "a repetition" if operator == "*" else "a text or list")
            budget_of(context).take_steps(1, size)
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: B902, N805 - as in Jinja2
        budget_of(__context).take_steps(_CALL_STEPS)
        check_method(__obj, args, kwargs)
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
        check_field(format_spec)
        text = super().format_field(value, format_spec)
        self._num_chars += len(text)
        check_size(self._num_chars, "a formatted text")
        return text


def _limited(function: Callable[..., Any], name: str, limit: int) -> Callable[..., Any]:
    @wraps(function)  # with what says which arguments Jinja2 passes
    def limited(*args: Any, **kwargs: Any) -> Any:
        if any(isinstance(number, int) and abs(number) > limit for number in (*args[1:], *kwargs.values())):
            raise RowError(f"{name} with a number above {limit}")
        return function(*args, **kwargs)

    return limited


def _indent(value: str, width: int | str = 4, *arguments: Any, **options: Any) -> str:
    num_lines = str(value).count("\n") + 1
    check_size(len(value) + num_lines * (width if isinstance(width, int) else len(width)), "an indented text")
    return filters.do_indent(value, width, *arguments, **options)


@jinja2.pass_eval_context
def _replace(context: nodes.EvalContext, value: str, old: str, new: str, count: int | None = None) -> str:
    check_size(size_replaced(str(value), str(old), str(new), -1 if count is None else count), "a text made by replace")
    return filters.do_replace(context, value, old, new, count)


def _format(value: str, *args: Any, **kwargs: Any) -> str:
    check_size(size_formatted(str(value), kwargs or args), "a formatted text")
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
        check_size(size, "a joined text")
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
