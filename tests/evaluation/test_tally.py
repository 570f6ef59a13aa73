"""Means are exact whatever the scores, and intervals those of all of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchpaged.evaluation import tally as tally_module
from batchpaged.evaluation.intervals import estimate_mean
from batchpaged.evaluation.tally import Tally

SCORES = st.lists(st.sampled_from([0.0, 1 / 3, 0.5, 1.0, 250.0]), min_size=1, max_size=40)


def tally_of(scores: list[float]) -> Tally:
    tally = Tally()
    for score in scores:
        tally.add(score)
    return tally


@given(SCORES)
def test_the_interval_is_that_of_a_comparison(scores: list[float]) -> None:
    expected = estimate_mean(np.array(scores))
    tally = tally_of(scores)
    assert tally.mean() == pytest.approx(expected.mean)
    assert (tally.details()["low"], tally.details()["high"]) == pytest.approx((expected.low, expected.high))


def test_no_rows_have_neither_mean_nor_interval() -> None:
    assert Tally().mean() is None
    assert Tally().details() == {"low": None, "high": None, "num_rows": 0, "errors": {}}


def test_parts_merge_to_the_whole_whose_scores_have_fewer_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tally_module, "_MOST_VALUES", 4)
    first, last = [0.11, 0.12, 0.13, 0.14, 0.16], [0.171, 0.9]
    whole, merged, other = tally_of(first + last), Tally(), tally_of(first)
    other.errors["ValueError"] += 2
    merged.errors["ValueError"] += 1
    merged.merge(other)
    for score in last:
        merged.add(score)
    assert merged._counts == whole._counts == {0.1: 4, 0.2: 2, 0.9: 1}
    assert merged.details() == {**whole.details(), "errors": {"ValueError": 3}}
    assert merged.mean() == pytest.approx(whole.mean())


def test_any_number_of_different_scores_takes_bounded_memory() -> None:
    scores = np.random.default_rng(0).normal(1e6, 1e5, 60_000)
    tally = tally_of(scores.tolist())
    details = tally.details()
    assert len(tally._counts) <= 20_000
    assert tally.mean() == pytest.approx(scores.mean())
    assert details["high"] - details["low"] == pytest.approx(2 * 1.96 * 1e5 / np.sqrt(60_000), rel=0.1)
