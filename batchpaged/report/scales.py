"""Round numbers for axes."""

from __future__ import annotations

import math

_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_TIME_STEPS = (
    *(1, 2, 5, 10, 15, 30),
    *(n * _MINUTE for n in (1, 2, 5, 10, 15, 30)),
    *(n * _HOUR for n in (1, 2, 3, 6, 12)),
)


def nice_scale(highest: float, whole: bool = False, num_steps: int = 4) -> tuple[float, tuple[float, ...]]:
    """The top of an axis that holds `highest`, and its ticks from zero; `whole`: no fractions between them."""
    if highest <= 0:
        return 1.0, (0.0, 1.0)
    step = _round_step(highest / num_steps)
    step = max(step, 1.0) if whole else step
    count = math.ceil(highest / step - 1e-9)
    return count * step, tuple(i * step for i in range(count + 1))


def nice_range(low: float, high: float, num_steps: int = 4) -> tuple[float, float, tuple[float, ...]]:
    """Bottom and top of an axis for shares from `low` to `high`, which need not begin at zero, and its ticks."""
    spread = max(high - low, 0.02)
    step = _round_step(spread / num_steps)
    last = max(1, math.ceil(high / step - 1e-9))
    first = max(0, min(math.floor(low / step - 0.1), last - 1))  # a line on the axis would look like zero
    return first * step, last * step, tuple(i * step for i in range(first, last + 1))


def time_ticks(end: float, most: int = 6) -> tuple[tuple[float, str], ...]:
    """(seconds, label) from zero to `end`; at most `most` after the first."""
    step = _time_step(end, most)
    return tuple((i * step, time_label(i * step)) for i in range(int(end / step + 1e-9) + 1))


def time_label(seconds: float) -> str:
    """0, 0.5 s, 30 s, 1 min 30 s, 2 h 15 min, 1 d 12 h"""
    if seconds < _MINUTE:
        return "0" if seconds == 0 else f"{seconds:g} s"
    units = ((_DAY, "d", _HOUR, "h"), (_HOUR, "h", _MINUTE, "min"), (_MINUTE, "min", 1, "s"))
    size, unit, smaller, name = next(row for row in units if seconds >= row[0])
    rest = round(seconds % size / smaller)
    return f"{seconds // size:.0f} {unit}" + (f" {rest} {name}" if rest else "")


def round_multiple(width: float, least: float) -> float:
    """The smallest round number (1, 2 or 5 times a power of ten) of whole `width`s, at least `least` of them."""
    exponent = math.floor(math.log10(width))
    while True:
        for leading in (1, 2, 5):
            value = leading * 10.0**exponent
            if value >= width * least * (1 - 1e-9) and abs(value / width - round(value / width)) < 1e-6:
                return value
        exponent += 1


def short(value: float) -> str:
    """Axis labels: 0, 250, 1.5k, 20M."""
    for size, suffix in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{suffix}"
    return f"{value:g}"


def _time_step(end: float, most: int) -> float:
    if end < most:
        return _round_step(end / most)
    return next((step for step in _TIME_STEPS if end / step <= most), math.ceil(end / most / _DAY) * _DAY)


def _round_step(least: float) -> float:
    """The smallest of 1, 2, 2.5, 5 times a power of ten that is not below `least`."""
    magnitude = 10.0 ** math.floor(math.log10(least))
    return next(m * magnitude for m in (1, 2, 2.5, 5, 10) if m * magnitude >= least * (1 - 1e-9))
