"""Charts with a run at each place of the x axis, in order: nights are evenly spaced, whatever lay between them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from batchpaged.report.charts import HEIGHT, WIDTH, Chart, Line, Readout, Tick
from batchpaged.report.scales import nice_range, nice_scale, short

Values = Sequence[float | None]
Axis = Literal["score", "percent", "count", "amount"]  # the first two show where values lie, the others begin at zero
_MOST_TICKS = 6
_DATE = re.compile(r"\d{4}-\d\d-\d\d")


@dataclass(frozen=True)
class RunSeries:
    """One line. `values` has one entry per run; None leaves a gap."""

    kind: str  # names the line's style
    name: str
    values: Values
    has_dots: bool = True


def run_chart(
    title: str,
    note: str,
    labels: Sequence[str],
    series: Sequence[RunSeries],
    show: Callable[[float | None], str],
    marks: Sequence[int] = (),
    axis: Axis = "amount",
) -> Chart:
    """`labels` name the runs; `marks` are places of runs."""
    known = [value for item in series for value in item.values if value is not None]
    low, high, steps = _scale(known, axis)
    return Chart(
        title=title,
        note=note,
        x_ticks=_ticks(labels),
        y_ticks=tuple(Tick(100 * (step - low) / (high - low), _tick_label(step, steps, axis)) for step in steps),
        readouts=_readouts(labels, series, show),
        lines=tuple(line for item in series for line in _lines(item, low, high)),
        marks=tuple(100 * (place + 0.5) / len(labels) for place in marks),
    )


def _scale(values: Sequence[float], axis: Axis) -> tuple[float, float, tuple[float, ...]]:
    if values and axis in ("score", "percent"):
        return nice_range(min(values), max(values))
    high, steps = nice_scale(max(values, default=0.0), whole=axis == "count")
    return 0.0, high, steps


def _tick_label(step: float, steps: Sequence[float], axis: Axis) -> str:
    if axis in ("amount", "count"):
        return short(step)
    factor, sign = (100, "%") if axis == "percent" else (1, "")
    width = factor * (steps[1] - steps[0])
    decimals = next((digits for digits in range(6) if abs(round(width, digits) - width) < 1e-9), 6)
    return f"{factor * step:.{decimals}f}{sign}"


def _ticks(labels: Sequence[str]) -> tuple[Tick, ...]:
    stride = math.ceil(len(labels) / _MOST_TICKS)
    places = range((len(labels) - 1) % stride, len(labels), stride)  # the last run always has its label
    is_one_year = len({label[:5] for label in labels}) == 1 and _DATE.match(labels[0])
    shown = [label[5:] if is_one_year else label for label in labels]
    return tuple(Tick(100 * (place + 0.5) / len(labels), shown[place]) for place in places)


def _readouts(
    labels: Sequence[str], series: Sequence[RunSeries], show: Callable[[float | None], str]
) -> tuple[Readout, ...]:
    share = 100 / len(labels)
    return tuple(
        Readout(round(i * share, 3), round(share, 3), label, tuple((item.name, show(item.values[i])) for item in series))
        for i, label in enumerate(labels)
    )


def _lines(series: RunSeries, low: float, high: float) -> list[Line]:
    count = len(series.values)
    points = [
        None if value is None else (WIDTH * (i + 0.5) / count, HEIGHT * (1 - (value - low) / (high - low)))
        for i, value in enumerate(series.values)
    ]
    line = Line(series.kind, _path(points), "")
    dots = "".join(f"M{_point(point)}h0" for point in points if point is not None)
    return [line, Line(f"{series.kind} dots", dots, "")] if series.has_dots else [line]


def _path(points: Sequence[tuple[float, float] | None]) -> str:
    """Broken where a value is missing."""
    pairs = zip([None, *points], points)
    return "".join(f"{'M' if before is None else 'L'}{_point(point)}" for before, point in pairs if point is not None)


def _point(point: tuple[float, float]) -> str:
    return " ".join(f"{value:.1f}".removesuffix(".0") for value in point)
