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
from batchpaged.cli.text import plan_lines, status_lines, summary_lines
from batchpaged.dataset.schema import OUTPUT_COLUMNS
from batchpaged.errors import RefusedError, UnfinishedError
from batchpaged.past.compare import compare_runs
from batchpaged.run.directory import RunDirectory
from batchpaged.report.formatting import ABSENT
from batchpaged.run.retry import find_retry
from batchpaged.simulation.request import SimulationRequest

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
    num_rows = tiny_runs.NUM_ROWS - 1
    report = api.run(pipeline(tiny_runs.new_path("cache"), ANSWER, again, gates=[]), limit=num_rows).report
    first, second = report["stages"]["answer"]["tokens"], report["stages"]["again"]["tokens"]
    assert second["prompt"] == first["prompt"] and second["prefilled"] < first["prefilled"]
    assert list(report["evaluation"])[:2] == ["answer.exact_match", "answer.rouge_l"]
    for part in (report, *report["stages"].values()):
        assert part["limit"] == {"rows": num_rows, "of": tiny_runs.NUM_ROWS}
        assert 0 < part["gpu_cache_usage_perc"]["peak"] <= 1


def test_between_stages_a_run_goes_on_with_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = tiny_runs.new_path("between")
    with monkeypatch.context() as patch:
        patch.setattr(stages, "write_stage_report", _stop)
        with pytest.raises(UnfinishedError):
            api.run(pipeline(run_dir))
    assert not (run_dir / "stages" / "judge").exists()
    status = api.status(run_dir)
    assert (status.state, [stage.state for stage in status.stages]) == ("interrupted", ["interrupted", "not begun"])
    assert status.num_units is None and status.num_units_done > 1
    assert (status.num_rows_done, status.num_rows) == (tiny_runs.NUM_ROWS, 2 * tiny_runs.NUM_ROWS)
    lines = dict(line.split(maxsplit=1) for line in status_lines(status))
    assert lines["Units"] == f"{status.num_units_done} done; the total is known once every stage is planned"
    assert lines["Rows"].endswith("of 120 done (50.0%)") and lines["Stages"] == "0 of 2 done (0.0%)"
    assert lines["tiny.judge"] == "not begun"
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


def test_stages_are_planned_whole_where_their_prompts_are_known() -> None:
    again = {**ANSWER, "name": "again", "sampling": {"max_tokens": 2, "structured": {"column": "answer"}}}
    request = SimulationRequest((1,))
    plans = api.plan(pipeline(tiny_runs.new_path("none"), ANSWER, {**ANSWER, "name": "twice"}, again, JUDGE), simulate=request)
    assert [stage.name for stage in plans] == ["answer", "twice", "again", "judge"]
    first, second, third, judge = (stage.plan for stage in plans)
    tokens = finished().report["stages"]["answer"]["tokens"]
    assert first.summary == second.summary and first.summary.num_unique_tokens == tokens["unique"]
    assert first.simulation.num_rows == second.simulation.num_rows == tiny_runs.NUM_ROWS - len(tiny_runs.FAILED)
    assert (third.uses, judge.uses) == (("answer",), ("answer", "answer_finish_reason"))
    assert (third.num_known_tokens, third.num_unique_tokens) == (tokens["prompt"], tokens["unique"])
    assert (third.num_failed, judge.num_failed, judge.num_rows) == (len(tiny_runs.FAILED), 1, tiny_runs.NUM_ROWS)
    said = finished().report["stages"]["judge"]["tokens"]
    assert 0 < judge.num_unique_tokens < said["unique"] and judge.num_unique_tokens < judge.num_known_tokens
    lines = plan_lines(plans)
    assert [line for line in lines if line.startswith("Stage ")][-1] == "Stage judge, 4 of 4"
    assert any(line.startswith("Not known yet   answer, answer_finish_reason, of a stage before") for line in lines)
    assert lines[-1] == "Estimated time  not known yet; completions of at most 3 tokens"


def test_of_a_prompt_that_is_an_earlier_answer_nothing_is_known() -> None:
    _, stage = api.plan(pipeline(tiny_runs.new_path("none"), ANSWER, {**JUDGE, "prompt": {"text_column": "answer"}}))
    assert (stage.plan.num_known_tokens, stage.plan.num_failed, stage.plan.num_rows) == (0, 0, tiny_runs.NUM_ROWS)
    assert any(line == f"Sharing         {ABSENT}" for line in plan_lines((stage,)))


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


def test_failed_rows_on_a_store_are_refused_before_the_store_is_asked() -> None:
    with pytest.raises(RefusedError, match="only where the run directory is a folder, in this version"):
        api.run(pipeline(tiny_runs.new_path("bad"), output={"path": "s3://bucket/run"}), retry_failed=True)


# --- failed rows again ---

COLUMNS = ["id", "answer", "answer_status", "completion", "status", "error", "prompt_hash"]


@cache
def small() -> api.RunResult:
    """A cache in which many rows have no room, in either stage."""
    engine = {"kv_cache": 10, "max_sequences": 16, "max_batch_tokens": 256, "device": "cpu"}
    return api.run(pipeline(tiny_runs.new_path("small"), engine=engine, gates=[]))


def copy_of_small() -> Path:
    return Path(shutil.copytree(small().run_dir, tiny_runs.new_path("copy")))


def check_retried(run_dir: Path, result: api.RunResult) -> None:
    assert output(run_dir / "output", COLUMNS).equals(output(finished().run_dir / "output", COLUMNS))
    assert sorted(path.name for path in (run_dir / "stages").iterdir()) == ["answer", "judge"]
    assert not list(run_dir.rglob("retry-*"))
    assert result.report["rows"]["failed"] == len(tiny_runs.FAILED)
    for report in result.report["stages"].values():
        assert sum(worker["num_prefilled_tokens"] for worker in report["workers"]) == report["tokens"]["prefilled"]
        assert sum(report["misses"].values()) == report["tokens"]["prefilled"]


def test_failed_rows_are_computed_again_and_go_on_through_the_later_stages() -> None:
    before, run_dir, notes = small().report["stages"], copy_of_small(), tiny_runs.Notes()
    old = {row["id"]: row for row in output(run_dir / "output").to_pylist()}
    result = api.run(pipeline(run_dir), retry_failed=True, reporter=notes)
    check_retried(run_dir, result)
    num_failed = [report["rows"]["failed"] for report in before.values()]
    assert len(tiny_runs.FAILED) < num_failed[0] <= num_failed[1] < tiny_runs.NUM_ROWS
    num_kept = tiny_runs.NUM_ROWS - num_failed[1]
    assert f"{num_kept} rows have the prompt that they had, and are kept" in notes.lines
    assert notes.lines[0].startswith(f"stage answer: failed rows that are computed again: {num_failed[0] - 5}; 5 more")
    for row in output(run_dir / "output").to_pylist():  # what was in the cache tells when a row was computed
        kept = [name for name in ("answer_cached_tokens", "cached_tokens") if old[row["id"]][name] is not None]
        assert [row[name] for name in kept] == [old[row["id"]][name] for name in kept]
    assert len(result.report["stages"]["judge"]["workers"]) == 2


def test_rows_that_failed_in_a_later_stage_alone() -> None:
    run_dir = tiny_runs.new_path("later")
    narrow = {"engine": {"kv_cache": 10, "max_sequences": 16, "max_batch_tokens": 256, "device": "cpu"}, "gates": []}
    short = {**ANSWER, "prompt": {"user": "{{ id }}"}}
    long = {**JUDGE, "prompt": {"user": "{{ answer }}{{ document }}{{ document }}"}}
    first = api.run(pipeline(run_dir, short, long, **narrow)).report
    assert first["stages"]["answer"]["rows"]["failed"] == 0 < first["rows"]["failed"]
    before = tiny_runs.snapshot(run_dir / "stages" / "answer" / "units")
    notes = tiny_runs.Notes()
    report = api.run(pipeline(run_dir, short, long, gates=[]), retry_failed=True, reporter=notes).report
    assert tiny_runs.snapshot(run_dir / "stages" / "answer" / "units") == before
    assert report["rows"]["failed"] < first["rows"]["failed"] and "kept" not in "".join(notes.lines)


def test_rows_with_schemas_of_their_own_are_kept_where_prompt_and_schema_are_the_same(tmp_path: Path) -> None:
    """Three rows are; the fourth did not fit in the first stage, which says the schemas, and was free in the second one."""
    rows = [{"q": "Why?" if i < 3 else "why " * 60} for i in range(4)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    schema = {"max_tokens": 40, "structured": {"choices": ['{"enum": ["yes", "no"]}']}}
    first = {"name": "first", "prompt": {"user": "{{ q }}"}, "sampling": schema}
    second = {"name": "second", "prompt": {"user": "{{ q[:4] }}"}, "sampling": {"max_tokens": 9, "structured": {"column": "first"}}}
    sections = {"input": {"path": str(tmp_path / "rows.parquet")}, "gates": []}
    small = {"kv_cache": 10, "max_sequences": 16, "max_batch_tokens": 256, "device": "cpu"}
    report = api.run(pipeline(tmp_path / "run", first, second, engine=small, **sections)).report
    assert [stage["rows"]["failed"] for stage in report["stages"].values()] == [1, 0]
    notes = tiny_runs.Notes()
    result = api.run(pipeline(tmp_path / "run", first, second, **sections), retry_failed=True, reporter=notes)
    assert "3 rows have the prompt that they had, and are kept" in notes.lines
    assert set(output(result.run_dir / "output", ["completion"])["completion"].to_pylist()) <= {'"yes"', '"no"'}


@pytest.mark.parametrize("where", ["before anything", "while rows are taken over", "twice"])
def test_a_retry_that_was_interrupted_goes_on(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = copy_of_small()
    find_retry(RunDirectory(run_dir), ["answer", "judge"]).begin(RunDirectory(run_dir))
    assert not RunDirectory(run_dir).is_finished
    if where != "before anything":
        with monkeypatch.context() as patch:
            patch.setattr(RunDirectory, "delete", _stop)  # all is taken over by then
            with pytest.raises(UnfinishedError, match="stopped by the test"):
                api.run(pipeline(run_dir))
        assert list((run_dir / "stages" / "judge" / "units").glob("retry-*"))
    result = api.run(pipeline(run_dir), retry_failed=where == "twice")
    check_retried(run_dir, result)


def test_where_nothing_failed_that_can_be_computed_nothing_is_done() -> None:
    notes = tiny_runs.Notes()
    nobody = {"scheduler": "tcp://127.0.0.1:9"}
    result = api.run(pipeline(finished().run_dir, cluster=nobody), retry_failed=True, reporter=notes)
    assert notes.lines[1] == "stage judge: failed rows that are computed again: 0"
    assert result.report == finished().report
