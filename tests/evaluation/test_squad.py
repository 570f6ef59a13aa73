import pytest

from batchpaged.evaluation.squad import exact_match, f1, normalise


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("The Eiffel Tower", "eiffel tower"),
        ("an  apple,\ta day\n", "apple day"),
        ("U.S.A.", "usa"),
        ("well-known", "wellknown"),
        ("theatre another than", "theatre another than"),  # articles only as whole words
        ("$1,000.50", "100050"),
        ("«A» “quoted”", "« » “quoted”"),  # only ASCII punctuation, and \b sees a word between quotation marks
        ("The A an", ""),
        ("ÉCOLE", "école"),
    ],
)
def test_normalise(text: str, expected: str) -> None:
    assert normalise(text) == expected


@pytest.mark.parametrize(
    ("completion", "references", "expected_match", "expected_f1"),
    [
        ("Denver Broncos", ["Denver Broncos"], 1.0, 1.0),
        ("the Denver Broncos.", ["denver broncos"], 1.0, 1.0),
        ("Broncos", ["Denver Broncos"], 0.0, 2 / 3),  # precision 1, recall 1/2
        ("Denver Broncos won it", ["Denver Broncos"], 0.0, 2 / 3),  # precision 1/2, recall 1
        ("Panthers", ["Denver Broncos"], 0.0, 0.0),
        ("Panthers", ["Denver Broncos", "Carolina Panthers", "panthers"], 1.0, 1.0),  # the best reference
        ("Carolina", ["Denver Broncos", "Carolina Panthers"], 0.0, 2 / 3),
        ("to be or not to be", ["to be"], 0.0, 0.5),  # common 2, precision 2/6, recall 1
        ("be be be", ["be"], 0.0, 0.5),  # a word counts as often as it occurs
        ("", ["something"], 0.0, 0.0),
        ("the", ["a"], 1.0, 0.0),  # v1.1: equal once normalised, yet no word in common
        ("24 August 1572", ["August 24, 1572"], 0.0, 1.0),  # order matters to exact match only
    ],
)
def test_scores(completion: str, references: list[str], expected_match: float, expected_f1: float) -> None:
    assert exact_match(completion, references) == expected_match
    assert f1(completion, references) == pytest.approx(expected_f1)


def test_no_reference_scores_nothing() -> None:
    assert exact_match("x", []) == 0.0
    assert f1("x", []) == 0.0
