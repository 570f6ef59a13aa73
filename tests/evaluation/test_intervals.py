import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchpaged.evaluation import intervals
from batchpaged.evaluation.intervals import estimate_mean

scores = st.lists(st.sampled_from([0.0, 1 / 3, 0.5, 1.0, -1.0]), min_size=1, max_size=50)


@given(scores)
def test_the_interval_holds_the_mean_and_lies_between_the_values(values):
    estimate = estimate_mean(np.array(values))
    assert estimate.mean == pytest.approx(np.mean(values))
    assert min(values) - 1e-9 <= estimate.low <= estimate.high <= max(values) + 1e-9
    assert estimate == estimate_mean(np.array(values))


def test_nothing_has_no_mean():
    assert estimate_mean(np.array([])) is None


def test_it_is_as_wide_as_theory_says_for_many_rows():
    values = np.repeat([0.0, 1.0], [300_000, 700_000])
    estimate = estimate_mean(values)
    expected = 1.96 * np.sqrt(0.3 * 0.7 / len(values))
    assert estimate.high - 0.7 == pytest.approx(expected, rel=0.1)
    assert 0.7 - estimate.low == pytest.approx(expected, rel=0.1)


def test_values_that_are_all_different_are_put_into_bins():
    values = np.random.default_rng(1).normal(3.0, 1.0, 20_000)
    estimate = estimate_mean(values)
    assert estimate.mean == values.mean()
    assert estimate.high - estimate.low == pytest.approx(2 * 1.96 / np.sqrt(20_000), rel=0.1)


def test_a_bin_stands_for_its_middle(monkeypatch):
    monkeypatch.setattr(intervals, "_MOST_VALUES", 2)
    estimate = estimate_mean(np.array([0.0, 1.0, 9.0, 10.0] * 100))
    assert estimate.low < 5 < estimate.high and (estimate.low + estimate.high) / 2 == pytest.approx(5, abs=0.1)


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    random = np.random.default_rng(2)
    estimates = [estimate_mean((random.random(200) < 0.4).astype(float)) for _ in range(200)]
    assert 0.9 <= np.mean([e.low <= 0.4 <= e.high for e in estimates]) <= 0.99


@pytest.mark.parametrize(("values", "is_clear"), [([1.0] * 9 + [0.0], True), ([1.0, -1.0], False), ([-0.5], True), ([0.0], False)])
def test_a_change_is_clear_if_the_interval_leaves_zero_out(values, is_clear):
    assert estimate_mean(np.array(values)).is_clear is is_clear
