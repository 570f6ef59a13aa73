"""Completions for rows in memory."""

import datasets
import pyarrow as pa
import pytest
import tiny_runs

import batchpaged
from batchpaged.dataset.schema import OUTPUT_COLUMNS
from batchpaged.errors import InputError, RunDirectoryError

ROWS = [{"q": f"Question {i}", "n": i, "words": ("a", "b")[: i % 3]} for i in range(5)] + [{"q": None, "more": 1.5}]


def generate(data, **more):
    arguments = {
        "model": {"id": str(tiny_runs.model()), "max_model_len": 128},
        "prompt": "A common start. {{ q }}",
        "sampling": {"max_tokens": 4},
        "engine": {"kv_cache": 64, "device": "cpu"},
        "cluster": {"scheduler": tiny_runs.cluster().scheduler_address},
    }
    return batchpaged.generate(data, **{**arguments, **more})


@pytest.fixture(scope="module")
def from_dicts():
    return generate(ROWS)


def test_dicts_come_back_as_they_were_with_the_new_keys(from_dicts):
    assert [list(row) for row in from_dicts.data] == [[*row, *OUTPUT_COLUMNS.names] for row in ROWS]
    assert [{key: row[key] for key in given} for row, given in zip(from_dicts.data, ROWS, strict=True)] == ROWS
    assert [row["status"] for row in from_dicts.data] == ["ok"] * 5 + ["failed"]
    assert all(row["completion"] for row in from_dicts.data[:5])
    assert from_dicts.data[5]["completion"] is None and "null" in from_dicts.data[5]["error"]


def test_the_report_comes_along(from_dicts):
    assert from_dicts.report["run"]["name"] == "generate"
    assert from_dicts.report["rows"] == {"total": 6, "succeeded": 5, "failed": 1, "truncated": 0, "deduplicated": 0}


def test_a_table_comes_back_with_its_own_columns_untouched(from_dicts):
    questions = pa.array([row["q"] for row in ROWS]).dictionary_encode()
    table = pa.table({"n": pa.array(range(6), pa.uint8()), "q": questions})
    table = table.replace_schema_metadata({"mine": "kept"})
    result = generate(table).data
    assert isinstance(result, pa.Table)
    assert result.select(["n", "q"]).equals(table, check_metadata=True)
    assert result.schema.names == ["n", "q", *OUTPUT_COLUMNS.names]
    assert result["completion"].to_pylist() == [row["completion"] for row in from_dicts.data]


def test_a_dataset_comes_back_with_its_features_and_order(from_dicts):
    label = datasets.ClassLabel(names=["even", "odd"])
    features = datasets.Features({"q": datasets.Value("string"), "label": label})
    whole = datasets.Dataset.from_dict({"q": [row["q"] for row in ROWS], "label": [i % 2 for i in range(6)]}, features)
    result = generate(whole.select([4, 0, 2]).with_format("numpy")).data
    assert isinstance(result, datasets.Dataset)
    assert result.features["label"] == label
    assert result.column_names == ["q", "label", *OUTPUT_COLUMNS.names]
    assert result["q"][:] == ["Question 4", "Question 0", "Question 2"]
    assert result["completion"][:] == [from_dicts.data[i]["completion"] for i in (4, 0, 2)]


def test_sections_of_a_pipeline_file_are_taken():
    ids = pa.table({"ids": [[1, 50, 51, 52], [1, 50, 51, 53]], "gold": ["x", "y"]})
    evaluate = {"references": "gold", "metrics": ["f1"]}
    result = generate(ids, prompt={"token_ids_column": "ids"}, evaluate=evaluate)
    assert result.data["prompt_tokens"].to_pylist() == [4, 4]
    assert result.report["evaluation"]["num_evaluated"] == 2


def test_with_a_run_directory_the_same_call_does_nothing_again_and_other_rows_are_refused(tmp_path):
    first = generate(ROWS[:3], run_dir=tmp_path / "run")
    again = generate(ROWS[:3], run_dir=tmp_path / "run", cluster={"scheduler": "tcp://127.0.0.1:9"})
    assert again.data == first.data and again.report == first.report
    with pytest.raises(RunDirectoryError, match="input file changed: the rows given"):
        generate(ROWS[:2], run_dir=tmp_path / "run")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([], "no rows"),
        (pa.table({"q": pa.array([], pa.string())}), "no rows"),
        ([{"q": "x"}, "y"], "row 1 is a str"),
        ([{"q": "a-secret"}, {"q": 2}], r"column 'q' does not have one type"),
        ([{"q": object()}], "column 'q'"),
        ([{"q": "x", "completion": "y"}], "'completion' have the name of an output column"),
        ([{"text": "x"}], "'q', which is no column of the input"),
        ("text", "not str"),
        ({"q": ["x"]}, "not dict"),
        (None, "not NoneType"),
        (iter([{"q": "x"}]), "not list_iterator"),
    ],
)
def test_what_is_no_table_is_refused(data, words):
    with pytest.raises(InputError, match=words) as refusal:
        generate(data)
    assert "a-secret" not in str(refusal.value)
