"""How large a template's operation makes its result, judged before it runs: repetitions, field widths, `replace`, `join`."""

import re
from collections.abc import Callable, Sized
from typing import Any

import jinja2

from batchpaged.errors import RowError

MAX_TEXT_CHARS = 1 << 24  # of one rendered template, and of any text on the way to it
MAX_FIELD_CHARS = 100_000  # width or precision of a formatted value
_MAX_POWER = 1000
_MAX_INTEGER_BITS = 100_000
_CONVERSION = re.compile(r"%(?:\([^)]*\))?([^a-zA-Z%(]*)")
_PADDING = ("ljust", "rjust", "center", "zfill", "expandtabs", "to_bytes")  # methods whose number is a size
_SIZES_OF_METHODS = {
    "expandtabs": lambda text, size=8: len(text) + text.count("\t") * size,
    "replace": lambda text, old, new, count=-1: size_replaced(text, old, new, count),
    "join": lambda text, items: sum(weigh(item) + len(text) for item in items) if isinstance(items, list) else 0,
    "translate": lambda text, table: len(text) * max(map(weigh, table.values()), default=1) if table else len(text),
}


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
    check_size(weigh(value), "a value")


def check_size(size: int, what: str) -> None:
    if size > MAX_TEXT_CHARS:
        raise RowError(f"{what} longer than {MAX_TEXT_CHARS} characters or items")


def check_numbers(operator: str, left: float, right: float) -> None:
    if operator == "**" and not (_is_small(left) and _is_small(right)):
        raise RowError(f"a power of numbers above {_MAX_POWER}")
    if operator == "*" and isinstance(left, int) and isinstance(right, int):
        if left.bit_length() + right.bit_length() > _MAX_INTEGER_BITS:
            raise RowError(f"a number of more than {_MAX_INTEGER_BITS} bits")


def _is_small(value: float) -> bool:
    return isinstance(value, float) or abs(value) <= _MAX_POWER


def size_of_result(operator: str, left: Any, right: Any) -> int:
    if operator == "*":
        sized, count = (right, left) if isinstance(left, int) else (left, right)
        return _length(sized) * count if isinstance(count, int) else 0
    if operator == "%":
        return size_formatted(left, right) if isinstance(left, str | bytes) else 0
    return _length(left) + _length(right) if operator == "+" else 0


def _length(value: Any) -> int:
    return len(value) if isinstance(value, Sized) and not isinstance(value, jinja2.Undefined) else 0


def size_formatted(text: str | bytes, arguments: Any) -> int:
    """Of `text % arguments`, at most. Raises RowError for a width that nobody means."""
    text = text if isinstance(text, str) else text.decode("latin-1")
    conversions = _CONVERSION.findall(text)
    widths = [check_field(conversion) for conversion in conversions]
    values = list(arguments.values() if isinstance(arguments, dict) else _as_tuple(arguments))
    if any("*" in conversion for conversion in conversions):
        widths += [_check_width(abs(value)) for value in values if isinstance(value, int)]
    return len(text) + sum(widths) + len(conversions) * max(map(weigh, values), default=0)


def _as_tuple(arguments: Any) -> tuple:
    return arguments if isinstance(arguments, tuple) else (arguments,)


def check_field(spec: str) -> int:
    """-> sum of the numbers in it"""
    return sum(_check_width(int(digits[:10])) for digits in re.findall(r"\d+", spec))


def _check_width(number: int) -> int:
    if number > MAX_FIELD_CHARS:
        raise RowError(f"formats a value with more than {MAX_FIELD_CHARS} characters")
    return number


def check_method(method: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    """Methods of texts, bytes and numbers."""
    owner = getattr(method, "__self__", None)
    if not isinstance(owner, str | bytes | int):
        return
    numbers = [number for number in (*args, *kwargs.values()) if isinstance(number, int)]
    if method.__name__ in _PADDING and max(numbers, default=0) > MAX_TEXT_CHARS:
        raise RowError(f"{method.__name__}() with a number above {MAX_TEXT_CHARS}")
    size_of = _SIZES_OF_METHODS.get(method.__name__)
    if size_of is not None and isinstance(owner, str | bytes):
        check_size(_size_or_zero(size_of, owner, args, kwargs), f"a text made by {method.__name__}()")


def _size_or_zero(size_of: Callable[..., int], owner: Any, args: tuple, kwargs: dict[str, Any]) -> int:
    """Arguments that are wrong are for the method itself to refuse."""
    try:
        return size_of(owner, *args, **kwargs)
    except (TypeError, AttributeError):
        return 0


def size_replaced(text: str, old: str, new: str, count: int = -1) -> int:
    number = text.count(old)
    number = number if count < 0 else min(number, count)
    return len(text) + number * max(0, len(new) - len(old))
