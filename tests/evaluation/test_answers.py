"""ROUGE-L, contains and numeric match by hand, and what holds for any texts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchpaged.evaluation.answers import ANSWER_METRICS, contains, numeric_match, rouge_l

TEXTS = st.lists(st.sampled_from(["the", "blue", "whale", "Blue!", "sea", "7", "-1.5", ""]), max_size=6).map(" ".join)


@pytest.mark.parametrize(
    ("completion", "references", "score"),
    [
        ("police killed the gunman", ["police kill the gunman"], 0.75),  # the example of ROUGE's paper
        ("the gunman kill police", ["police kill the gunman"], 0.5),
        ("Die Brücke, 1932!", ["die brücke von 1932"], 2 * 3 / 7),
        ("b", ["a", "b"], 1.0),
        ("", ["a"], 0.0),
        ("!", ["?"], 0.0),
    ],
)
def test_rouge_l(completion: str, references: list[str], score: float) -> None:
    assert rouge_l(completion, references) == pytest.approx(score)


@given(TEXTS, TEXTS)
def test_the_longest_common_subsequence_is_what_dynamic_programming_finds(a: str, b: str) -> None:
    x, y = (text.lower().replace("!", " ").replace("-", " ").replace(".", " ").split() for text in (a, b))
    best = [[0] * (len(y) + 1) for _ in range(len(x) + 1)]
    for i, word in enumerate(x):
        for j, other in enumerate(y):
            best[i + 1][j + 1] = best[i][j] + 1 if word == other else max(best[i][j + 1], best[i + 1][j])
    expected = 2 * best[-1][-1] / (len(x) + len(y)) if best[-1][-1] else 0.0
    assert rouge_l(a, [b]) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("completion", "reference", "score"),
    [
        ("It opened in 1932, they say.", "1932", 1),
        ("It opened in 19322", "1932", 0),
        ("An old red dog.", "the red dog", 1),
        ("dog red", "red dog", 0),
        ("anything", "the", 0),
        ("a", "the", 0),  # neither says anything
    ],
)
def test_contains(completion: str, reference: str, score: int) -> None:
    assert contains(completion, [reference]) == score


@pytest.mark.parametrize(
    ("completion", "reference", "score"),
    [
        ("So 3 + 4 makes 7.", "7", 1),
        ("7, not 8", "7", 0),  # the last number is the answer
        ("$1,200.00", "1200", 1),
        ("minus -5", "-5", 1),
        ("GPT-4", "4", 1),
        ("1e3", "1000", 1),
        ("0.3333333", "0.33333333", 1),
        ("0.33", "0.3333", 0),
        ("0.3334", "0.3333", 0),
        ("as of v1.2.3", "2.3", 0),
        ("1,2345", "2345", 1),
        ("nothing", "3", 0),
        (".5", "0.5", 1),
        ("1,2", "2", 1),
        ("7", "seven", None),
    ],
)
def test_numeric_match(completion: str, reference: str, score: int | None) -> None:
    assert numeric_match(completion, [reference]) == score


@given(st.text(max_size=40), st.lists(st.text(max_size=40), min_size=1, max_size=3))
def test_any_text_has_a_score_from_0_to_1_or_none(completion: str, references: list[str]) -> None:
    for metric in ANSWER_METRICS.values():
        score = metric(completion, references)
        assert score is None or 0.0 <= score <= 1.0


@given(TEXTS, st.lists(TEXTS, min_size=1, max_size=3))
def test_one_more_reference_never_lowers_a_score(completion: str, references: list[str]) -> None:
    for name, metric in ANSWER_METRICS.items():
        fewer, all_of_them = metric(completion, references[:-1]), metric(completion, references)
        assert fewer is None or fewer <= all_of_them, name
