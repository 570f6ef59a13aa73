"""Runs of several stages: what later stages see, what they share, where they go on, and what is refused."""

import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiny_runs

from batchpaged import api, stages
from batchpaged.cli_text import status_lines, summary_lines
from batchpaged.dataset.schema import OUTPUT_COLUMNS
from batchpaged.errors import RefusedError, UnfinishedError
from batchpaged.past.compare import compare_runs

ANSWER = {
    "name": "answer",
    "prompt": {"system": tiny_runs.SYSTEM, "user": tiny_runs.USER},
    "evaluate": {"references": "answers", "metrics": ["exact_match", "rouge_l"]},
}
JUDGE = {
    "name": "judge",
    "prompt": {"user": "{{ document }} Is this {{ answer_finish_reason }}: {{ answer }}"},
    "sampling": {"max_tokens": 3, "structured": {"choices": ["yes", "no"]}},
    "evaluate": {"judge": {"name": "correctness", "verdicts": {"yes": 1, "no": 0}}},
}
GATES = ["stages.judge.prefix_cache_hit_rate > 0", "correctness >= 0", f"failed_rows <= {len(tiny_runs.FAILED)}"]


def pipeline(run_dir: Path, *given: dict[str, Any], **sections: Any) -> dict[str, Any]:
    made = tiny_runs.pipeline(run_dir, **{"stages": list(given) or [ANSWER, JUDGE], "gates": GATES, **sections})
    return {key: section for key, section in made.items() if key not in ("prompt", "evaluate")}


@cache
def finished() -> api.RunResult:
    return api.run(pipeline(tiny_runs.new_path("stages")))


def output(folder: Path, columns: list[str] | None = None) -> pa.Table:
    columns = columns or [name for name in pq.read_schema(next(folder.glob("*.parquet"))).names if name != "when"]
    return pa.concat_tables(pq.read_table(path, columns=columns) for path in sorted(folder.glob("*.parquet")))


def test_the_output_has_what_every_stage_said() -> None:
    rows = output(finished().run_dir / "output").to_pylist()
    alone = tiny_runs.output(tiny_runs.finished_run().run_dir, ["id", "completion", "status"]).to_pylist()
    assert [row["id"] for row in rows] == [row["id"] for row in alone]
    assert [row["answer"] for row in rows] == [row["completion"] for row in alone]
    assert {row["completion"] for row in rows if row["status"] == "ok"} <= {"yes", "no"}
    failed = [row for row in rows if row["status"] == "failed"]
    assert {row["answer_status"] for row in failed} == {"failed"} and len(failed) == len(tiny_runs.FAILED)


def test_the_report_is_of_all_stages_and_of_each() -> None:
    report = finished().report
    answer, judge = report["stages"]["answer"], report["stages"]["judge"]
    assert finished().exit_code == 0
    assert report["rows"]["total"] == judge["rows"]["total"] == tiny_runs.NUM_ROWS
    assert report["tokens"]["prompt"] == answer["tokens"]["prompt"] + judge["tokens"]["prompt"]
    assert list(report["evaluation"]) == ["exact_match", "rouge_l", "correctness", "num_evaluated"]
    assert 0 <= report["evaluation"]["correctness"] <= 1
    assert report["evaluation_details"]["correctness"]["errors"] == {}
    assert [gate["passed"] for gate in report["gates"]] == [True] * 3
    scores = pq.read_table(finished().run_dir / "scores.parquet")
    assert scores.column_names == ["exact_match", "rouge_l", "correctness"] and len(scores) == tiny_runs.NUM_ROWS
    assert "stages/judge/report.html" in (finished().run_dir / "report.html").read_text()
    assert "judge" in "\n".join(summary_lines(report, finished().run_dir, "x", 200))


def test_the_model_is_loaded_once_and_each_stage_counts_its_own_tokens() -> None:
    answer, judge = finished().report["stages"].values()
    assert answer["time"]["load"] > 0 and judge["time"]["load"] == 0
    for stage in (answer, judge):
        [worker] = stage["workers"]
        assert worker["num_completion_tokens"] == stage["tokens"]["completion"]
        assert worker["num_prefilled_tokens"] + worker["num_cached_tokens"] == stage["tokens"]["prompt"]


def test_a_stage_finds_in_the_cache_what_one_before_it_computed() -> None:
    again = {**ANSWER, "name": "again"}
    report = api.run(pipeline(tiny_runs.new_path("cache"), ANSWER, again, gates=[])).report
    first, second = report["stages"]["answer"]["tokens"], report["stages"]["again"]["tokens"]
    assert second["prompt"] == first["prompt"] and second["prefilled"] < first["prefilled"]
    assert list(report["evaluation"])[:2] == ["answer.exact_match", "answer.rouge_l"]


def test_between_stages_a_run_goes_on_with_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = tiny_runs.new_path("between")
    with monkeypatch.context() as patch:
        patch.setattr(stages, "write_stage_report", _stop)
        with pytest.raises(UnfinishedError):
            api.run(pipeline(run_dir))
    assert not (run_dir / "stages" / "judge").exists()
    assert api.status(run_dir).state == "interrupted"
    before = tiny_runs.snapshot(run_dir / "stages" / "answer" / "units")
    result = api.run(pipeline(run_dir))
    assert tiny_runs.snapshot(run_dir / "stages" / "answer" / "units") == before
    assert output(run_dir / "output", ["id", "answer", "completion"]).equals(
        output(finished().run_dir / "output", ["id", "answer", "completion"])
    )
    assert result.report["evaluation"] == finished().report["evaluation"]


def _stop(*arguments: Any) -> None:
    raise UnfinishedError("stopped by the test")


def test_inside_a_stage_a_run_goes_on_with_the_units_that_are_missing() -> None:
    run_dir = Path(shutil.copytree(finished().run_dir, tiny_runs.new_path("inside")))
    judge = run_dir / "stages" / "judge"
    for path in (run_dir / "output", judge / "output"):
        shutil.rmtree(path)
    for path in (run_dir / "report.json", judge / "report.json", judge / "units" / "unit-000000.parquet"):
        path.unlink()
    before = tiny_runs.snapshot(run_dir / "stages")
    api.run(pipeline(run_dir))
    after = tiny_runs.snapshot(run_dir / "stages")
    units = {name for name in after if "/units/" in name and after[name] != before.get(name)}
    assert units == {"judge/units/unit-000000.parquet"}
    columns = ["id", "answer", "completion", "status"]
    assert output(run_dir / "output", columns).equals(output(finished().run_dir / "output", columns))


def test_a_finished_run_is_reported_again_and_not_computed() -> None:
    notes = tiny_runs.Notes()
    nobody = {"scheduler": "tcp://127.0.0.1:9"}
    result = api.run(pipeline(finished().run_dir, cluster=nobody), reporter=notes)
    assert "finished already" in notes.lines[0]
    assert result.report == finished().report


def test_status_tells_of_each_stage() -> None:
    status = api.status(finished().run_dir)
    assert (status.state, [stage.state for stage in status.stages]) == ("done", ["done", "done"])
    assert status.num_units_done == status.num_units > 2
    assert any(line.startswith("tiny.judge") for line in status_lines(status))


def test_two_runs_are_compared_by_the_metrics_of_all_their_stages() -> None:
    compared = compare_runs(finished().run_dir, finished().run_dir)
    assert list(compared["metrics"]) == ["exact_match", "rouge_l", "correctness"]
    assert compared["metrics"]["correctness"]["change"]["mean"] == 0
    one = compare_runs(*[finished().run_dir / "stages" / "answer"] * 2)
    assert list(one["metrics"]) == ["exact_match", "rouge_l"] and one["rows"]["both"] == tiny_runs.NUM_ROWS


def test_another_question_for_the_judge_is_another_run() -> None:
    other = {**JUDGE, "prompt": {"user": "secret {{ answer }}"}}
    with pytest.raises(RefusedError, match=r"stages\.judge\.prompt\.user changed") as refusal:
        api.run(pipeline(finished().run_dir, ANSWER, other))
    assert "secret" not in str(refusal.value)


def test_a_plan_is_made_of_the_first_stage() -> None:
    plan = api.plan(pipeline(tiny_runs.new_path("none")))
    assert plan.summary.num_unique_tokens == finished().report["stages"]["answer"]["tokens"]["unique"]


@pytest.mark.parametrize(
    ("given", "sections", "message"),
    [
        ([ANSWER, {**JUDGE, "prompt": {"user": "{{ anser }}"}}], {}, "stage judge: .*anser"),
        ([{**ANSWER, "name": "document"}], {}, "document adds a column 'document'"),
        ([ANSWER, ANSWER], {}, "two stages of the name 'answer'"),
        ([{**ANSWER, "name": "status"}], {}, "which is a column of the output"),
        ([{**ANSWER, "prompt": {"user": "secret", "text_column": "id"}}], {}, r"stages\[0\]\.prompt: needs exactly one of"),
        ([ANSWER, {**JUDGE, "evaluate": {"judge": {"verdicts": {}}}}], {}, r"stages\[1\]\.evaluate\.judge\.verdicts"),
        ([ANSWER], {"sampling": {"max_tokens": 1000}}, "sampling.max_tokens"),
        ([ANSWER], {"gates": ["stages.jugde.rows.failed <= 0"]}, "asks for 'stages.jugde.rows.failed'"),
    ],
)
def test_what_cannot_run_is_refused(given: list[dict], sections: dict, message: str) -> None:
    with pytest.raises(RefusedError, match=message) as refusal:
        api.validate({**pipeline(tiny_runs.new_path("bad"), *given), **sections})
    assert "secret" not in str(refusal.value)


def test_no_stage_has_the_name_of_an_output_column() -> None:
    for name in OUTPUT_COLUMNS.names:
        with pytest.raises(RefusedError, match=f"{name!r}, which is a column of the output"):
            api.validate(pipeline(tiny_runs.new_path("bad"), {**ANSWER, "name": name}))


def test_prompt_and_stages_exclude_each_other() -> None:
    with pytest.raises(RefusedError, match="prompt.*is each stage's own"):
        api.validate({**pipeline(tiny_runs.new_path("bad")), "prompt": {"user": "x"}})


def test_a_run_directory_on_a_store_is_refused_before_the_store_is_asked() -> None:
    with pytest.raises(RefusedError, match="has to be a folder in this version"):
        api.run(pipeline(tiny_runs.new_path("bad"), output={"path": "s3://bucket/run"}))


def test_failed_rows_are_not_retried_in_stages() -> None:
    with pytest.raises(RefusedError, match="--retry-failed is for runs without stages"):
        api.run(pipeline(finished().run_dir), retry_failed=True)
