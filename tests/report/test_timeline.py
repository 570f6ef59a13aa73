import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from report.synthetic import make_facts, make_timeline

from batchpaged.report.timeline import MOST_INTERVALS, split_workers, summarise_timeline, usage_mean_and_peak


def steady(worker: str, num_samples: int, start: float = 0.0, rate: int = 10) -> list[tuple]:
    """One sample a second, `rate` prefilled and 2 completion tokens each, half of the pool in use."""
    return [(start + i, worker, rate * i, 0, 2 * i, 0.5, 4, 1, 0) for i in range(num_samples)]


def test_a_steady_run_is_flat() -> None:
    timeline = summarise_timeline(make_timeline(steady("a", 41) + steady("b", 41, rate=30)))
    assert timeline is not None
    assert len(timeline.edges) == 21
    np.testing.assert_allclose(timeline.prefilled_per_s, 40.0)
    np.testing.assert_allclose(timeline.completion_per_s, 4.0)
    np.testing.assert_allclose(timeline.usage_mean, 0.5)
    np.testing.assert_allclose(timeline.num_running, 8.0)
    np.testing.assert_allclose(timeline.num_waiting, 2.0)


def test_a_worker_that_is_not_there_neither_runs_nor_lowers_the_mean() -> None:
    timeline = summarise_timeline(make_timeline(steady("a", 41) + steady("b", 21)))
    assert timeline is not None
    np.testing.assert_allclose(timeline.num_running, [8.0] * 10 + [4.0] * 10)
    np.testing.assert_allclose(timeline.usage_mean, 0.5)


def test_a_worker_that_starts_late_adds_nothing_before() -> None:
    timeline = summarise_timeline(make_timeline(steady("a", 41, start=40.0)))
    assert timeline is not None
    assert timeline.prefilled_per_s[:9].sum() == 0
    np.testing.assert_allclose(timeline.prefilled_per_s[-9:], 10.0)


def test_a_counter_that_starts_again_counts_on() -> None:
    again = steady("a", 5) + [(5.0 + t, *rest) for t, *rest in steady("a", 5)]
    (worker,) = split_workers(make_timeline(again))
    assert worker.values["num_prefilled_tokens"].tolist() == [0, 10, 20, 30, 40, 40, 50, 60, 70, 80]


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.floats(0, 500), st.integers(0, 50), st.floats(0, 1), st.integers(0, 2)),
        min_size=1,
        max_size=60,
    )
)
def test_downsampling_loses_no_token(events: list[tuple]) -> None:
    totals, samples = {}, []
    for worker, t, tokens, usage, preemptions in sorted(events, key=lambda event: event[1]):
        counters = totals.setdefault(worker, [0, 0, 0])
        counters[0] += tokens
        counters[1] += 2 * tokens
        counters[2] += preemptions
        samples.append((t, worker, counters[0], 0, counters[1], usage, 1, 0, counters[2]))
    table = make_timeline(samples)
    timeline = summarise_timeline(table)
    mean, peak = usage_mean_and_peak(table)
    assert 0 <= mean <= peak + 1e-9 and peak == max(event[3] for event in events)
    if timeline is None:
        return
    seconds = np.diff(timeline.edges)
    assert len(seconds) <= MOST_INTERVALS
    for column, per_s in ((0, timeline.prefilled_per_s), (1, timeline.completion_per_s)):
        assert (per_s >= 0).all()
        assert (per_s * seconds).sum() == pytest.approx(sum(total[column] for total in totals.values()), abs=1e-6)
    assert timeline.num_preemptions.sum() == pytest.approx(sum(total[2] for total in totals.values()), abs=1e-6)
    assert (timeline.usage_peak >= timeline.usage_mean - 1e-9).all()


@pytest.mark.parametrize("num_samples", [0, 1, 2])
def test_too_few_samples_draw_nothing(num_samples: int) -> None:
    assert summarise_timeline(make_timeline(steady("a", num_samples))) is None


def test_samples_that_are_no_numbers_are_left_out() -> None:
    table = make_timeline(
        [*steady("a", 3), (3.0, "a", 40, 0, 8, float("nan"), 4, 1, 0), (None, "a", 1, 0, 1, 0.5, 1, 1, 0)]
    )
    assert usage_mean_and_peak(table) == (0.5, 0.5)


def test_usage_is_weighted_by_time() -> None:
    assert usage_mean_and_peak(make_facts().timeline) == (0.5, 1.0)
    assert usage_mean_and_peak(make_timeline(steady("a", 1))) == (0.5, 0.5)
    assert usage_mean_and_peak(make_timeline([])) == (None, None)
