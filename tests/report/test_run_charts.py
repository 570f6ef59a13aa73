import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchpaged.report import formatting as fmt
from batchpaged.report.run_charts import RunSeries, run_chart
from batchpaged.report.scales import nice_range

shares = st.floats(0, 1)


@given(shares, shares)
def test_a_range_holds_its_values_between_round_ticks(first, second):
    low, high = sorted((first, second))
    bottom, top, ticks = nice_range(low, high)
    assert bottom <= low + 1e-9 and high <= top + 1e-9 and bottom < top
    assert 2 <= len(ticks) <= 9 and ticks[0] == bottom and ticks[-1] == pytest.approx(top)
    assert 0 <= bottom and top <= 1.0001


@given(st.lists(st.none() | shares, min_size=1, max_size=40), st.sampled_from(["score", "percent", "count", "amount"]))
def test_points_lie_in_the_plot_and_gaps_stay_gaps(values, axis):
    labels = [f"day {i}" for i in range(len(values))]
    chart = run_chart("f1", "", labels, [RunSeries("prefill", "f1", values)], fmt.rate, (), axis)
    line, dots = chart.lines
    assert dots.path.count("h0") == sum(value is not None for value in values)
    assert line.path.count("M") == sum(v is not None and (i == 0 or values[i - 1] is None) for i, v in enumerate(values))
    points = [tuple(map(float, text.split())) for text in line.path.replace("L", "M").split("M")[1:]]
    assert all(0 <= x <= 1000 and -0.1 <= y <= 100.1 for x, y in points)
    assert chart.x_ticks[-1].label == labels[-1] and len(chart.x_ticks) <= 6
    assert len(chart.readouts) == len(values)


def test_runs_are_marked_at_their_places():
    chart = run_chart("f1", "", ["a", "b"], [RunSeries("prefill", "f1", [0.5, 0.6])], fmt.rate, [1])
    assert chart.marks == (75.0,)


@pytest.mark.parametrize(
    ("axis", "values", "labels"),
    [
        ("score", [0.51, 0.6], ["0.500", "0.525", "0.550", "0.575", "0.600"]),
        ("percent", [0.51, 0.6], ["50.0%", "52.5%", "55.0%", "57.5%", "60.0%"]),
        ("count", [1, 0], ["0", "1"]),
        ("amount", [0.5, 1.0], ["0", "0.25", "0.5", "0.75", "1"]),
    ],
)
def test_axes(axis, values, labels):
    chart = run_chart("f1", "", ["a", "b"], [RunSeries("prefill", "f1", values)], fmt.rate, (), axis)
    assert [tick.label for tick in chart.y_ticks] == labels


def test_days_of_one_year_are_short():
    def labels(*days):
        chart = run_chart("f1", "", days, [RunSeries("prefill", "f1", [1.0] * len(days))], fmt.rate)
        return [tick.label for tick in chart.x_ticks]

    assert labels("2026-03-01", "2026-03-02 03:15") == ["03-01", "03-02 03:15"]
    assert labels("2025-12-31", "2026-01-01") == ["2025-12-31", "2026-01-01"]


def test_what_is_no_share_begins_at_zero():
    chart = run_chart("time", "", ["a", "b"], [RunSeries("running", "time", [90.0, 100.0])], fmt.rate)
    assert [tick.label for tick in chart.y_ticks] == ["0", "25", "50", "75", "100"]
