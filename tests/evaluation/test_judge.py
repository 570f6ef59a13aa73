"""Verdicts: which words count, and what becomes of a completion that is none."""

import pytest

from batchpaged.config.evaluate import EvaluateConfig
from batchpaged.evaluation.evaluator import Evaluator
from batchpaged.evaluation.judge import verdict_worth
from batchpaged.evaluation.pipeline import metrics_of

VERDICTS = (("yes", 1.0), ("no", 0.0), ("not sure", 0.5))


@pytest.mark.parametrize(
    ("completion", "worth"),
    [
        ("yes", 1.0),
        (" Yes, it does.", 1.0),
        ("**No**", 0.0),
        ("Not sure, yes", 0.5),
        ("yesterday", None),
        ("It says yes", None),
        ("", None),
    ],
)
def test_a_completion_is_the_verdict_that_it_begins_with(completion: str, worth: float | None) -> None:
    assert verdict_worth(completion, VERDICTS) == worth


def test_the_longest_of_several_verdicts_is_meant() -> None:
    assert verdict_worth("not at all", (("not", 0.5), ("not at all", 0.0))) == 0.0


def test_a_verdict_without_words_is_none() -> None:
    assert verdict_worth("maybe", (("?", 1.0),)) is None


def test_no_verdict_does_not_count_and_is_counted_and_a_failed_row_is_zero() -> None:
    evaluate = EvaluateConfig.model_validate({"judge": {"name": "correctness", "verdicts": {"yes": 1.0, "no": 0.0}}})
    evaluator = Evaluator(metrics_of(evaluate))
    scores = evaluator.add(["yes", "No.", "maybe", None], ["ok", "ok", "ok", "failed"])
    details = evaluator.details()["correctness"]
    assert scores == {"correctness": [1.0, 0.0, None, 0.0]}
    assert evaluator.result() == {"correctness": pytest.approx(1 / 3), "num_evaluated": 3}
    assert (details["num_rows"], details["errors"]) == (3, {"no verdict": 1})
