"""A whole run with metrics of every kind, and what a comparison makes of two of them."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
import tiny_runs
import yaml

from batchpaged import api
from batchpaged.errors import RefusedError

OWN = '''
def length(completion, references, row):
    return len(completion) + row["divisor"]

def failing(completion, references, row):
    return 1 / (row["divisor"] - DIVISOR)
'''


@pytest.fixture(scope="module")
def folder() -> Path:
    made = tiny_runs.new_path("metrics")
    made.mkdir()
    first = tiny_runs.rows()[0]["divisor"]
    (made / "own.py").write_text(OWN.replace("DIVISOR", str(1 + first % 3)))
    return made


def write(folder: Path, run_dir: Path, **evaluate: object) -> Path:
    """A pipeline file beside the module."""
    file = folder / "tiny.yaml"
    evaluate = {"references": "answers", "contexts": "questions", "gold_contexts": "questions", **evaluate}
    gates = ["evaluation_details.length.low >= 1", "length > 2", "recall_at_2 == 1"]
    file.write_text(yaml.safe_dump(tiny_runs.pipeline(run_dir, evaluate=evaluate, gates=gates)))
    return file


@pytest.fixture(scope="module")
def result(folder: Path) -> api.RunResult:
    metrics = ["exact_match", "contains", "recall_at_2", "mrr", "own:length", "own:failing"]
    return api.run(write(folder, tiny_runs.new_path("metric-run"), metrics=metrics))


def test_every_metric_has_mean_interval_and_rows(result: api.RunResult) -> None:
    report, details = result.report, result.report["evaluation_details"]
    assert result.exit_code == 0
    assert list(details) == ["exact_match", "contains", "recall_at_2", "mrr", "length", "failing"]
    assert (report["evaluation"]["mrr"], details["mrr"]["low"]) == (1.0, 1.0)
    assert details["recall_at_2"]["num_rows"] == tiny_runs.NUM_ROWS - 1  # one row has no question
    assert details["length"]["low"] <= report["evaluation"]["length"] <= details["length"]["high"]
    assert details["failing"]["errors"]["ZeroDivisionError"] > 0


def test_scores_are_kept_row_by_row(result: api.RunResult) -> None:
    scores = pq.read_table(result.run_dir / "scores.parquet")
    rows = tiny_runs.output(result.run_dir, ["completion", "divisor"]).to_pylist()
    lengths = [0 if row["completion"] is None else len(row["completion"]) + row["divisor"] for row in rows]
    assert scores["length"].to_pylist() == lengths


def test_a_comparison_judges_a_users_metric_without_running_it(result: api.RunResult, folder: Path) -> None:
    (folder / "own.py").rename(folder / "gone.py")
    try:
        compared = api.compare(result.run_dir, result.run_dir).result["metrics"]
    finally:
        (folder / "gone.py").rename(folder / "own.py")
    assert list(compared) == ["exact_match", "contains", "recall_at_2", "mrr", "length", "failing"]
    assert compared["length"]["change"] == {"mean": 0.0, "low": 0.0, "high": 0.0}
    assert compared["length"]["a"]["mean"] == result.report["evaluation"]["length"]


def test_another_choice_of_metrics_is_evaluated_anew(result: api.RunResult, folder: Path) -> None:
    pipeline = write(folder, result.run_dir, metrics=["own:length", "recall_at_2"])
    report = api.run(pipeline).report
    assert list(report["evaluation"]) == ["length", "recall_at_2", "num_evaluated"]
    assert pq.read_schema(result.run_dir / "scores.parquet").names == ["length", "recall_at_2"]


@pytest.mark.parametrize(
    ("evaluate", "message"),
    [
        ({"metrics": "own:lenght"}, "did you mean length"),
        ({"metrics": "own:failing"}, "raised ZeroDivisionError .* for the first row"),
        ({"metrics": "mrr", "contexts": "context"}, "evaluate.contexts: 'context' is no column"),
        ({"metrics": "f1", "references": "answer"}, "'answer' is no column of the input; did you mean 'answers'\\? The input has id, "),
        ({"metrics": "mrr", "gold_contexts": "divisor"}, "evaluate.gold_contexts: column 'divisor' is int64"),
        ({"metrics": "absent:length", "metrics_folder": "/nowhere"}, "there is no absent.py in /nowhere, "),
    ],
)
def test_validate_refuses_what_would_fail(folder: Path, evaluate: dict, message: str) -> None:
    if evaluate["metrics"] == "own:failing":
        (folder / "own.py").write_text((folder / "own.py").read_text() + "\ndef failing(c, r, row): return 1 / 0\n")
    pipeline = yaml.safe_load(write(folder, folder / "none", **evaluate).read_text())
    file = folder / "other.yaml"
    file.write_text(yaml.safe_dump({**pipeline, "gates": []}))
    with pytest.raises(RefusedError, match=message):
        api.validate(file)
