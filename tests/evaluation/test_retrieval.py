"""Metrics of contexts by hand, and what holds for any ranking."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchpaged.evaluation.retrieval import precision, recall, reciprocal_rank, retrieval_metric

IDS = st.lists(st.sampled_from("abcdefg"), max_size=8)
GOLD = st.lists(st.sampled_from("abcdefg"), min_size=1, max_size=4)


def test_by_hand() -> None:
    contexts, gold = ["x", "a", "y", "b"], ["a", "b", "c"]
    assert [recall(contexts, gold, k) for k in (1, 2, 4, 9)] == pytest.approx([0, 1 / 3, 2 / 3, 2 / 3])
    assert [precision(contexts, gold, k) for k in (1, 2, 4, 8)] == [0, 1 / 2, 1 / 2, 1 / 4]
    assert reciprocal_rank(contexts, gold) == 1 / 2
    assert reciprocal_rank(contexts, ["z"]) == 0


def test_white_space_makes_no_other_context_and_one_that_comes_twice_counts_once() -> None:
    assert recall(["two  words\n"], ["two words"], 1) == 1
    assert precision(["a", "a", "b"], ["a", "b"], 2) == 1


@pytest.mark.parametrize("name", ["recall_at_0", "recall_at_", "recall", "mrr_at_5", "precision_at_-1", "f1"])
def test_other_names_are_no_metrics(name: str) -> None:
    assert retrieval_metric(name) is None


@given(IDS, GOLD)
def test_scores_are_fractions_and_recall_grows_with_k(contexts: list[str], gold: list[str]) -> None:
    recalls = [retrieval_metric(f"recall_at_{k}")(contexts, gold) for k in range(1, 10)]
    precisions = [retrieval_metric(f"precision_at_{k}")(contexts, gold) for k in range(1, 10)]
    rank = retrieval_metric("mrr")(contexts, gold)
    assert recalls == sorted(recalls)
    assert all(0 <= score <= 1 for score in [*recalls, *precisions, rank])
    assert (rank > 0) == (recalls[-1] > 0) == bool(set(contexts) & set(gold))
