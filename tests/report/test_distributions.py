import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from report.synthetic import make_facts, make_rows

from batchpaged.report.distributions import MOST_BINS, bin_lengths, count_cached_fractions, count_lengths


def rows_of(lengths: list[int]):
    return make_rows([("r", "ok", None, "stop", length, 0, 1) for length in lengths])


@given(st.lists(st.integers(0, 100_000), min_size=1, max_size=50))
def test_bins_hold_every_row_once(lengths: list[int]) -> None:
    counted = count_lengths(rows_of(lengths), "prompt_tokens")
    bins = bin_lengths(counted)
    assert 1 <= len(bins.counts) <= MOST_BINS
    assert bins.counts.sum() == len(lengths)
    expected, _ = np.histogram(lengths, np.append(bins.edges[:-1], bins.edges[-1]))
    assert bins.counts.tolist() == expected.tolist()
    assert bins.edges[0] <= min(lengths) and max(lengths) < bins.edges[-1]


@given(st.lists(st.integers(0, 500), min_size=1, max_size=50), st.sampled_from([0.0, 0.5, 0.95, 1.0]))
def test_quantiles_are_exact(lengths: list[int], share: float) -> None:
    counted = count_lengths(rows_of(lengths), "prompt_tokens")
    expected = np.quantile(lengths, share, method="inverted_cdf")
    assert counted.quantile(share) == expected
    assert counted.longest == max(lengths)


def test_failed_rows_have_no_length() -> None:
    assert count_lengths(make_facts().rows, "prompt_tokens").longest == 120
    assert count_lengths(make_rows([]), "prompt_tokens").num_rows == 0


def test_cached_fractions() -> None:
    rows = make_rows(
        [("r", "ok", None, "stop", prompt, cached, 1) for prompt, cached in [(10, 0), (20, 1), (100, 99), (4, 4)]]
    )
    fractions = count_cached_fractions(rows)
    assert fractions.num_without_hit == 1
    assert fractions.bins.counts.tolist() == [1, 1, *[0] * 17, 2]
