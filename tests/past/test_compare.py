"""Two runs with planted differences, every count known."""

import json
import shutil

import pytest
from click.testing import CliRunner
from past.pastruns import make_run, make_unfinished, row
from rich.console import Console

from batchpaged.cli.commands import cli
from batchpaged.errors import InputError, RunDirectoryError
from batchpaged.past.compare import compare_runs
from batchpaged.past.compare_text import ComparisonView, worse_lines

COMMON = [row(f"same-{i}", "yes") for i in range(20)]
BEFORE = [*COMMON, row("worse", "yes"), row("reworded", "no"), row("new prompt", "no"), row("fails", "no"), row("works", None), row("gone", "yes")]
AFTER = [
    row("works", "yes"), row("come", "yes", None), row("fails", None), row("new prompt", "maybe", prompt="q"),
    row("reworded", "nope"), row("worse", "no"), *reversed(COMMON),
]  # fmt: skip


@pytest.fixture
def runs(tmp_path):
    return make_run(tmp_path / "a", 1, rows=BEFORE, references="answers"), make_run(tmp_path / "b", 2, rows=AFTER, references="answers")


def shown(result):
    console = Console(width=160)
    with console.capture() as capture:
        console.print(ComparisonView(result))
    return capture.get()


def test_rows_are_matched_by_id_whatever_their_order(runs):
    result = compare_runs(*runs)
    assert result["rows"] == {
        "matched_by": "id", "a": 26, "b": 26, "both": 25, "changed": 5, "changed_same_prompt": 4, "prompt_changed": 1,
        "newly_failed": 1, "no_longer_failed": 1, "only_a": 1, "only_b": 1,
    }  # fmt: skip
    assert result["ids"] == {
        "changed": ["works", "fails", "new prompt", "reworded", "worse"],
        "changed_same_prompt": ["works", "fails", "reworded", "worse"],
        "prompt_changed": ["new prompt"], "newly_failed": ["fails"], "no_longer_failed": ["works"],
        "only_a": ["gone"], "only_b": ["come"],
    }  # fmt: skip
    assert compare_runs(*runs, num_ids=2)["ids"]["changed"] == ["works", "fails"]


def test_metrics_are_compared_row_by_row(runs):
    metric = compare_runs(*runs)["metrics"]["exact_match"]
    assert metric["a"]["mean"] == 22 / 26 and metric["b"]["mean"] == 21 / 25  # a row without reference does not count
    assert (metric["num_rows"], metric["change"]["mean"], metric["verdict"]) == (25, 0.0, "unclear")


@pytest.mark.parametrize(("first", "second", "verdict"), [("yes", "no", "worse"), ("no", "yes", "better"), ("no", "no", "unclear")])
def test_a_clear_change_has_a_direction(tmp_path, first, second, verdict):
    a = make_run(tmp_path / "a", 1, rows=[*COMMON, *(row(i, first) for i in "123456")], references="answers")
    b = make_run(tmp_path / "b", 2, rows=[*COMMON, *(row(i, second) for i in "123456")], references="answers")
    metrics = compare_runs(a, b)["metrics"]
    assert metrics["f1"]["verdict"] == verdict
    lines = worse_lines(metrics)
    assert bool(lines) == (verdict == "worse")
    assert not lines or lines[0].startswith("worse: exact_match 1.0000 -> 0.7692, row by row -0.2308 [-0.")


def test_a_metric_that_one_run_lacks_is_shown_with_its_side(tmp_path):
    rows = [row(i, "yes") for i in "123456"]
    a = make_run(tmp_path / "a", 1, rows=rows, references="answers", evaluation={"f1": 1.0, "contains": 1.0})
    b = make_run(tmp_path / "b", 2, rows=rows, references="answers", evaluation={"f1": 1.0, "rouge_l": 1.0})
    for places in ((a, b), (a / "report.json", b / "report.json")):
        result = compare_runs(*places)
        assert {name: metric["verdict"] for name, metric in result["metrics"].items()} == {
            "f1": "unclear", "contains": "only_a", "rouge_l": "only_b"
        }  # fmt: skip
        assert result["metrics"]["contains"]["b"] is None and result["metrics"]["contains"]["a"]["mean"] == 1
        lines = [line.split() for line in shown(result).splitlines()]
        assert ["contains", "1.0000", "[1.0000,", "1.0000]", "–", "–", "not", "in", "B"] in lines
    (a / "report.json").rename(tmp_path / "a.json")
    result = compare_runs(tmp_path / "a.json", b)
    assert result["metrics"]["rouge_l"]["verdict"] == "only_b" and result["metrics"]["contains"]["b"] is None


def test_a_run_is_the_same_as_itself(runs):
    result = compare_runs(runs[0], runs[0])
    assert result["rows"]["both"] == 26 and not any(result["ids"].values())
    assert all(figure["change"] in (0, None) for figure in result["figures"].values())
    assert {metric["verdict"] for metric in result["metrics"].values()} == {"unclear"}


def test_output_folders_and_reports_will_do(runs):
    whole = compare_runs(*runs)
    for places in ([run / "output" for run in runs], [run / "report.json" for run in runs]):
        assert compare_runs(*places)["rows"] == whole["rows"]
    shutil.move(runs[0] / "output", runs[0].parent / "moved")
    alone = compare_runs(runs[0].parent / "moved", runs[1], "id", "answers")
    assert alone["rows"] == whole["rows"] and alone["metrics"] == whole["metrics"]
    assert alone["a"]["id"] is None


def test_of_reports_alone_there_are_figures_only(runs, tmp_path):
    shutil.copy(runs[0] / "report.json", tmp_path / "old.json")
    result = compare_runs(tmp_path / "old.json", runs[1])
    assert (result["rows"], result["ids"]) == (None, None)
    assert result["metrics"]["f1"]["a"] == {"mean": 0.625, "low": 0.5, "high": 0.875}
    assert result["figures"]["prefix_cache_hit_rate"] == {"a": 0.6, "b": 0.6, "change": 0.0}
    assert "a report alone" in shown(result)


def test_settings_that_differ_are_named_without_prompts(runs):
    info = json.loads((runs[1] / "run.json").read_text())
    info["identity"]["pipeline"]["prompt"]["user"] = "other secret"
    info["identity"]["model"] = "n"
    (runs[1] / "run.json").write_text(json.dumps(info))
    result = compare_runs(*runs)
    assert result["settings"] == ["prompt.user changed", "the model's files are not the same"]
    assert "secret" not in json.dumps(result) + shown(result)


def test_of_many_differences_the_first_are_shown(runs):
    info = json.loads((runs[1] / "run.json").read_text())
    info["identity"]["input"] = [{"path": f"{i}.parquet"} for i in range(20)]
    (runs[1] / "run.json").write_text(json.dumps(info))
    result = compare_runs(*runs)
    assert len(result["settings"]) == 20
    assert "input file added: 7.parquet" in shown(result) and "8.parquet" not in shown(result)
    assert "and 12 more differences" in shown(result)


def test_completions_are_shown_on_request_only(runs):
    result = compare_runs(*runs)
    assert result["texts"] is None and "nope" not in json.dumps(result) + shown(result)
    result = compare_runs(*runs, with_text=True)
    assert result["texts"]["reworded"] == {"a": "no", "b": "nope"} and result["texts"]["fails"] == {"a": "no", "b": None}
    assert "nope" in shown(result)


def test_without_an_id_column_rows_are_matched_by_position(runs):
    for run in runs:
        info = json.loads((run / "run.json").read_text())
        info["identity"]["pipeline"]["input"]["id_column"] = None
        (run / "run.json").write_text(json.dumps(info))
    rows = compare_runs(*runs)["rows"]
    assert (rows["matched_by"], rows["both"], rows["only_a"]) == (None, 26, 0)
    texts = compare_runs(*runs, with_text=True)["texts"]
    assert texts["2"] == {"a": "yes", "b": None} and "1" not in texts


def test_the_terminal_shows_it_all(runs):
    text = " ".join(shown(compare_runs(*runs)).split())
    for part in (
        "in both 25 by id", "completion changed 5 20.0%", "with the same prompt 4 16.0%", "only in A 1",
        "only in A: gone", "exact_match 0.8462 [", "no clear change", "hit rate 60.0% 60.0% =", "rag_eval-01",
    ):  # fmt: skip
        assert part in text, part


def test_what_cannot_be_compared_is_refused(runs, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    refusals = {
        (tmp_path / "none",): "no such file or folder",
        (empty,): "neither a run directory nor a folder with output",
        (make_unfinished(tmp_path / "unfinished"),): "has no report.json: the run is not finished",
        (runs[1], "answer"): "has no column 'answer', only id, answers",
        (runs[1], "answers"): "cannot hold row ids",
        (runs[1], "status"): "in column 'status' ids come twice",
        (runs[1], "id", "status2"): "has no column 'status2'",
        (make_run(tmp_path / "no ids", 3, rows=[row(None, "x")]),): "has 1 nulls",
    }
    for arguments, message in refusals.items():
        with pytest.raises((RunDirectoryError, InputError), match=message):
            compare_runs(runs[0], *arguments)
    (runs[1] / "output" / "a.parquet").write_bytes(b"no Parquet")
    with pytest.raises(InputError, match="cannot be read"):
        compare_runs(*runs)


@pytest.mark.parametrize("options", [[], ["--fail-on-worse"]])
def test_runs_without_a_common_row_are_refused(tmp_path, options):
    a, b = (make_run(tmp_path / name, rows=[row(name, "yes")], references="answers") for name in "ab")
    outcome = CliRunner().invoke(cli, ["compare", str(a), str(b), *options])
    assert outcome.exit_code == 2
    assert f"{a} and {b} cannot be compared: no id of column 'id' is in both" in " ".join(outcome.output.split())


def test_runs_that_name_rows_differently_need_a_common_column(runs):
    info = json.loads((runs[1] / "run.json").read_text())
    info["identity"]["pipeline"]["input"]["id_column"] = None
    (runs[1] / "run.json").write_text(json.dumps(info))
    with pytest.raises(InputError, match="by column 'id' and position; give a column that both have with --id"):
        compare_runs(*runs)
    assert compare_runs(*runs, "id")["rows"]["both"] == 25
