import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchpaged.errors import ConfigError, InputError
from batchpaged.evaluation.evaluator import Evaluator, check_references, evaluate
from batchpaged.evaluation.metrics import make_metrics

BOTH = ("exact_match", "f1")
TEXTS = st.lists(st.sampled_from(["the", "blue", "whale", "Blue!", "sea", ""]), max_size=5).map(" ".join)
ROWS = st.lists(
    st.tuples(
        st.none() | TEXTS,
        st.none() | TEXTS | st.lists(st.none() | TEXTS, max_size=3),
        st.sampled_from(["ok", "truncated", "failed"]),
    ),
    max_size=12,
)


def evaluator(*names: str) -> Evaluator:
    return Evaluator(make_metrics(names))


def test_a_mean_by_hand() -> None:
    completions = ["Paris", "a big red dog", "Rome", None]
    references = [["Paris", "city of Paris"], ["red dog"], ["Oslo"], ["Bern"]]
    result = evaluate(completions, references, ["ok", "truncated", "ok", "failed"], BOTH)
    assert result == {"exact_match": 0.25, "f1": pytest.approx((1 + 0.8) / 4), "num_evaluated": 4}


def test_a_failed_row_counts_as_zero() -> None:
    assert evaluate(["Paris", "Paris"], ["Paris", "Paris"], ["ok", "failed"], BOTH)["exact_match"] == 0.5


def test_of_several_completions_the_mean_counts_and_of_none_zero() -> None:
    scores = evaluator(*BOTH).add([["Paris", "Rome"], []], ["ok", "ok"], ["Paris", "Oslo"])
    assert scores == {"exact_match": [0.5, 0.0], "f1": [0.5, 0.0]}


@pytest.mark.parametrize("references", [None, "", "  ", [], [None], ["", None]])
def test_a_row_without_reference_is_left_out(references: object) -> None:
    result = evaluate(["x", "x"], [references, "x"], ["ok", "ok"], BOTH)
    assert result == {"exact_match": 1.0, "f1": 1.0, "num_evaluated": 1}


def test_nothing_to_evaluate_is_null_not_zero() -> None:
    assert evaluate([], [], [], BOTH) == {"exact_match": None, "f1": None, "num_evaluated": 0}


@pytest.mark.parametrize(
    "references",
    [
        pa.array(["a whale", None, "sea"]),
        pa.array(["a whale", None, "sea"], pa.large_string()),
        pa.array(["a whale", None, "sea"]).dictionary_encode(),
        pa.array([["x", "whale"], [], ["sea"]], pa.list_(pa.string())),
        pa.array([["x", "whale"], None, ["sea"]], pa.large_list(pa.large_string())),
        pa.chunked_array([pa.array([["whale"]]), pa.array([None, ["sea"]], pa.list_(pa.string()))]),
    ],
)
def test_arrow_columns_of_every_kind(references: pa.Array | pa.ChunkedArray) -> None:
    check_references("answers", references.type)
    completions = pa.chunked_array([["whale", "whale"], ["lake"]])
    result = evaluate(completions, references, pa.array(["ok"] * 3), ["exact_match"])
    assert result == {"exact_match": 0.5, "num_evaluated": 2}


@pytest.mark.parametrize("kind", [pa.int64(), pa.list_(pa.int64()), pa.struct([("text", pa.list_(pa.string()))])])
def test_a_column_that_holds_no_references_is_refused(kind: pa.DataType) -> None:
    with pytest.raises(InputError, match="'answers' is .*; it must be string or list<string>"):
        check_references("answers", kind)


def test_an_unknown_metric_is_refused() -> None:
    with pytest.raises(ConfigError, match="'bleu' is not one of exact_match, f1"):
        evaluate([], [], [], ["bleu"])


def test_columns_must_have_one_length() -> None:
    with pytest.raises(ValueError, match="different lengths"):
        evaluate(["x"], ["x", "y"], ["ok"], BOTH)


def test_only_evaluators_of_the_same_metrics_merge() -> None:
    with pytest.raises(ValueError, match="cannot merge"):
        evaluator("f1").merge(evaluator("exact_match"))


@given(ROWS, st.integers(0, 12))
def test_parts_merge_to_the_whole(rows: list, cut: int) -> None:
    whole, merged = evaluator(*BOTH), evaluator(*BOTH)
    for part_of, part in ((whole, rows), (merged, rows[:cut])):
        part_of.add(*([row[i] for row in part] for i in (0, 2, 1)))
    other = evaluator(*BOTH)
    other.add(*([row[i] for row in rows[cut:]] for i in (0, 2, 1)))
    merged.merge(other)
    assert merged.result() == pytest.approx(whole.result())
    assert merged.details() == whole.details()


@given(ROWS)
def test_scores_are_fractions(rows: list) -> None:
    result = evaluate(*([row[i] for row in rows] for i in range(3)), BOTH)
    for name in BOTH:
        assert result[name] is None or 0.0 <= result[name] <= 1.0
