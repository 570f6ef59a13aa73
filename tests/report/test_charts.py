import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchpaged.report.charts import HEIGHT, WIDTH, Series, histogram, stacked_bar, time_chart
from batchpaged.report.scales import nice_scale, round_multiple, short, time_label, time_ticks


def test_a_line_passes_through_the_middles_of_its_intervals() -> None:
    chart = time_chart("t", "n", np.array([0.0, 5.0, 10.0]), [Series("k", "v", np.array([2.0, 4.0]), str)])
    assert chart.lines[0].path == "M0 50L250 50L750 0L1000 0"
    assert chart.lines[0].area == "M0 50L250 50L750 0L1000 0V100H0Z"
    assert [(tick.at, tick.label) for tick in chart.y_ticks] == [(0, "0"), (25, "1"), (50, "2"), (75, "3"), (100, "4")]
    assert chart.x_ticks[-1].at == 100
    assert [readout.title for readout in chart.readouts] == ["0 s", "5 s"]


def test_a_series_that_is_not_drawn_is_only_read() -> None:
    series = [Series("a", "a", np.ones(2), str), Series("b", "b", np.full(2, 9.0), str, is_drawn=False)]
    chart = time_chart("t", "n", np.array([0.0, 1.0, 2.0]), series, marks=[1.0])
    assert [line.kind for line in chart.lines] == ["a"]
    assert chart.y_ticks[-1].label == "1"
    assert chart.readouts[0].values == (("a", "1.0"), ("b", "9.0"))
    assert chart.marks == (50.0,)


@given(st.lists(st.floats(0, 1e12), min_size=1, max_size=120), st.floats(0.01, 1e6))
def test_nothing_is_drawn_outside_the_plot(values: list[float], end: float) -> None:
    edges = np.linspace(0, end, len(values) + 1)
    chart = time_chart("t", "n", edges, [Series("k", "v", np.array(values), str)])
    numbers = [float(n) for n in re.findall(r"[\d.]+", chart.lines[0].path)]
    assert all(0 <= x <= WIDTH for x in numbers[::2]) and all(0 <= y <= HEIGHT for y in numbers[1::2])
    assert all(-1e-9 <= tick.at <= 100 + 1e-6 for tick in (*chart.x_ticks, *chart.y_ticks))
    assert len(chart.x_ticks) <= 7 and len(chart.y_ticks) <= 6


def test_bars_are_as_tall_as_their_bins_and_never_invisible() -> None:
    chart = histogram("t", "n", np.array([0, 10, 20, 30]), np.array([1000, 0, 1]), "{}-{}".format, str)
    assert [(bar.x, bar.height) for bar in chart.bars] == [(20.0, 100.0), (686.7, 0.8)]
    assert chart.readouts[2].values == (("rows", "1"), ("share", "0.1%"))


def test_labels_stand_at_round_values() -> None:
    edges = np.arange(150, 1101, 50)
    chart = histogram("t", "n", edges, np.ones(19, int), "{}{}".format, str)
    assert [tick.label for tick in chart.x_ticks] == ["200", "400", "600", "800", "1000"]
    single = histogram("t", "n", np.array([7, 8]), np.ones(1, int), "{}{}".format, str)
    assert [(tick.at, tick.label) for tick in single.x_ticks] == [(50.0, "7")]


def test_a_stacked_bar_leaves_out_what_is_empty() -> None:
    segments = stacked_bar([("a", "A", 3, "3"), ("b", "B", 0, "0"), ("c", "C", 1, "1")])
    assert [(segment.kind, segment.share) for segment in segments] == [("a", 75.0), ("c", 25.0)]
    assert stacked_bar([("a", "A", 0, "0")]) == ()


@given(st.floats(1e-6, 1e15))
def test_scales_hold_their_highest_value(highest: float) -> None:
    top, steps = nice_scale(highest)
    assert highest <= top * (1 + 1e-6) and top <= highest * 2.5
    assert steps[0] == 0 and 2 <= len(steps) <= 6


@pytest.mark.parametrize(
    ("end", "labels"),
    [
        (0.35, ["0", "0.1 s", "0.2 s", "0.3 s"]),
        (20, ["0", "5 s", "10 s", "15 s", "20 s"]),
        (400, ["0", "2 min", "4 min", "6 min"]),
        (7200, ["0", "30 min", "1 h", "1 h 30 min", "2 h"]),
        (200_000, ["0", "12 h", "1 d", "1 d 12 h", "2 d"]),
        (10_000_000, ["0", "20 d", "40 d", "60 d", "80 d", "100 d"]),
    ],
)
def test_time_ticks(end: float, labels: list[str]) -> None:
    assert [label for _, label in time_ticks(end)] == labels


def test_labels() -> None:
    assert [short(value) for value in (0, 0.3, 250, 1500, 2e7, 3e9)] == ["0", "0.3", "250", "1.5k", "20M", "3B"]
    assert time_label(90) == "1 min 30 s"
    assert [round_multiple(width, 3.5) for width in (1, 2, 5, 0.05)] == [5, 10, 20, 0.2]
