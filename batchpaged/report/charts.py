"""Charts as geometry: paths, bars, ticks and readouts, which the page's template turns into SVG and HTML.

The plot area is a stretched SVG of WIDTH x HEIGHT units; labels and readouts are HTML placed in percent of that area,
so that text keeps its size whether the page is 400 or 1,200 pixels wide. Nothing here knows a colour or a tag.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from batchpaged.report.scales import nice_scale, round_multiple, short, time_ticks

WIDTH, HEIGHT = 1000.0, 100.0


@dataclass(frozen=True)
class Tick:
    at: float  # percent of the axis, from its start
    label: str


@dataclass(frozen=True)
class Readout:
    """A column of the plot that shows its values while pointed at."""

    left: float  # percent
    width: float  # percent
    title: str
    values: tuple[tuple[str, str], ...]  # (label, value)

    @property
    def is_right_half(self) -> bool:
        return self.left + self.width / 2 > 50


@dataclass(frozen=True)
class Line:
    kind: str  # names the line's style
    path: str  # SVG path data of the line
    area: str  # the same, closed down to the axis


@dataclass(frozen=True)
class Bar:
    x: float  # SVG units
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Chart:
    """`lines` for a chart over time, `bars` for a histogram."""

    title: str
    note: str  # what to read from it, in words: also what a screen reader says
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    readouts: tuple[Readout, ...]
    lines: tuple[Line, ...] = ()
    bars: tuple[Bar, ...] = ()
    marks: tuple[float, ...] = ()  # percent of the x axis: moments worth a mark


@dataclass(frozen=True)
class Segment:
    """One part of a stacked bar."""

    kind: str
    name: str
    share: float  # percent of the bar
    value: str


@dataclass(frozen=True)
class Series:
    """One line of a chart over time. `values` has shape [num_intervals]."""

    kind: str
    name: str
    values: np.ndarray
    show: Callable[[float], str]
    is_drawn: bool = True  # else it is only in the readouts


def time_chart(
    title: str,
    note: str,
    edges: np.ndarray,
    series: Sequence[Series],
    show_tick: Callable[[float], str] = short,
    top: float | None = None,
    marks: Sequence[float] = (),
) -> Chart:
    """A line per series through the middles of the intervals. `edges`: seconds, [num_intervals + 1]; so are `marks`."""
    end = float(edges[-1])
    drawn = [item for item in series if item.is_drawn]
    highest, steps = nice_scale(top or max(float(item.values.max()) for item in drawn))
    return Chart(
        title=title,
        note=note,
        x_ticks=tuple(Tick(100 * t / end, label) for t, label in time_ticks(end)),
        y_ticks=tuple(Tick(100 * value / highest, show_tick(value)) for value in steps),
        readouts=_time_readouts(edges, series),
        lines=tuple(_line(item.kind, edges, item.values, highest) for item in drawn),
        marks=tuple(100 * t / end for t in marks),
    )


def histogram(
    title: str,
    note: str,
    edges: np.ndarray,
    counts: np.ndarray,
    show_bin: Callable[[float, float], str],
    show_edge: Callable[[float], str],
) -> Chart:
    """A bar per bin, heights in rows. `edges`: [num_bins + 1], evenly spaced."""
    highest, steps = nice_scale(float(counts.max()), whole=True)
    total = int(counts.sum())
    return Chart(
        title=title,
        note=note,
        x_ticks=_edge_ticks(edges, show_edge),
        y_ticks=tuple(Tick(100 * value / highest, short(value)) for value in steps),
        readouts=_bin_readouts(edges, counts, total, show_bin),
        bars=_bars(counts, highest),
    )


def stacked_bar(parts: Sequence[tuple[str, str, float, str]]) -> tuple[Segment, ...]:
    """Parts (kind, name, amount, shown value) that add up to the whole bar; empty ones are left out."""
    whole = sum(amount for _, _, amount, _ in parts)
    return tuple(
        Segment(kind, name, round(100 * amount / whole, 3), shown) for kind, name, amount, shown in parts if amount > 0
    )


def _line(kind: str, edges: np.ndarray, values: np.ndarray, highest: float) -> Line:
    x = _units((edges[1:] + edges[:-1]) / 2 / edges[-1], WIDTH)
    y = _units(1 - np.clip(values / highest, 0, 1), HEIGHT)
    # The first and last value reach the edges: half an interval of nothing would read as a pause.
    points = [f"0 {y[0]}", *(f"{a} {b}" for a, b in zip(x, y)), f"{WIDTH:g} {y[-1]}"]
    path = "M" + "L".join(points)
    return Line(kind, path, f"{path}V{HEIGHT:g}H0Z")


def _units(shares: np.ndarray, size: float) -> list[str]:
    return [f"{value:.1f}".removesuffix(".0") for value in shares * size]


def _time_readouts(edges: np.ndarray, series: Sequence[Series]) -> tuple[Readout, ...]:
    share = 100 / (len(edges) - 1)
    titles = _spans(edges)
    return tuple(
        Readout(round(i * share, 3), round(share, 3), titles[i], tuple((s.name, s.show(s.values[i])) for s in series))
        for i in range(len(edges) - 1)
    )


def _spans(edges: np.ndarray) -> list[str]:
    """Where each interval begins, as h:mm:ss or seconds with as many decimals as tell intervals apart."""
    if edges[-1] >= 120:
        return [f"{int(t) // 3600}:{int(t) // 60 % 60:02d}:{int(t) % 60:02d}" for t in edges[:-1]]
    decimals = max(0, min(3, math.ceil(-math.log10(edges[1]))))
    return [f"{t:.{decimals}f} s" for t in edges[:-1]]


def _edge_ticks(edges: np.ndarray, show: Callable[[float], str], most: int = 6) -> tuple[Tick, ...]:
    """At round values; a bin of one whole number has its label under its middle, not at its edge."""
    num_bins, width = len(edges) - 1, float(edges[1] - edges[0])
    step = round_multiple(width, (num_bins + 1) / most)
    shift, last = (0.5, num_bins) if width == 1 else (0.0, num_bins + 1)
    at_round = [i for i in range(last) if abs(edges[i] / step - round(edges[i] / step)) < 1e-6]
    return tuple(Tick(100 * (i + shift) / num_bins, show(edges[i])) for i in at_round or [0])


def _bin_readouts(
    edges: np.ndarray, counts: np.ndarray, total: int, show_bin: Callable[[float, float], str]
) -> tuple[Readout, ...]:
    share = 100 / len(counts)
    return tuple(
        Readout(
            round(i * share, 3),
            round(share, 3),
            show_bin(edges[i], edges[i + 1]),
            (("rows", f"{count:,}"), ("share", f"{count / total:.1%}")),
        )
        for i, count in enumerate(counts.tolist())
    )


def _bars(counts: np.ndarray, highest: float) -> tuple[Bar, ...]:
    """A hair of space between bars; a bin with any row at all is tall enough to be seen."""
    pitch = WIDTH / len(counts)
    heights = np.where(counts > 0, np.maximum(counts / highest * HEIGHT, 0.8), 0.0)
    return tuple(
        Bar(round(i * pitch + 0.06 * pitch, 1), round(HEIGHT - h, 2), round(0.88 * pitch, 1), round(h, 2))
        for i, h in enumerate(heights.tolist())
        if h > 0
    )
