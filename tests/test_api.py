"""run, plan, validate and status: what they take, give back, refuse, and leave on disk."""

import subprocess
import sys
from collections import Counter

import pyarrow.parquet as pq
import pytest
import tiny_runs
import yaml

import batchpaged
from batchpaged import api
from batchpaged.config import Pipeline, parse_pipeline
from batchpaged.errors import ConfigError, InputError, ModelError, RefusedError, RunDirectoryError
from batchpaged.run.unit_file import read_unit_facts

NOBODY = {"scheduler": "tcp://127.0.0.1:9"}  # no cluster is there: whoever asked it would be refused


# --- what run takes ---


@pytest.mark.parametrize("kind", ["mapping", "path", "pipeline"])
def test_a_pipeline_is_a_mapping_a_file_or_a_pipeline(kind, tmp_path, monkeypatch):
    given = []
    monkeypatch.setattr(api, "run_pipeline", lambda *args, **kwargs: given.append(args))
    mapping = tiny_runs.pipeline(tmp_path / "run")
    (tmp_path / "pipeline.yaml").write_text(yaml.safe_dump(mapping))
    api.run({"mapping": mapping, "path": str(tmp_path / "pipeline.yaml"), "pipeline": parse_pipeline(mapping)}[kind])
    [(pipeline, reporter, run_dir, fresh)] = given
    assert isinstance(pipeline, Pipeline) and pipeline == parse_pipeline(mapping)
    assert (run_dir, fresh) == (None, False)


def test_the_package_itself_is_the_function(tmp_path, monkeypatch):
    monkeypatch.setattr(api, "run_pipeline", lambda *args, **kwargs: "ran")
    assert batchpaged.run(tiny_runs.pipeline(tmp_path)) == "ran"


def test_overrides_limit_and_run_directory(tmp_path):
    pipeline = tiny_runs.pipeline(tmp_path / "not here", gates=[])
    result = api.run(pipeline, overrides=["sampling.max_tokens=3"], limit=5, run_dir=tmp_path / "here")
    assert result.run_dir == tmp_path / "here" and not (tmp_path / "not here").exists()
    rows = tiny_runs.output(result.run_dir).to_pylist()
    assert [row["id"] for row in rows] == [row["id"] for row in tiny_runs.rows()[:5]]
    assert {row["completion_tokens"] for row in rows} <= {1, 2, 3}
    assert result.report["limit"] == {"rows": 5, "of": tiny_runs.NUM_ROWS}


def test_stages_are_reported_in_order(tmp_path):
    notes = tiny_runs.Notes()
    api.run(tiny_runs.pipeline(tmp_path / "run"), limit=5, overrides=["gates=[]"], reporter=notes)
    without_the_wait = [stage for stage in notes.stages if stage != "load"]  # which may be over by then
    assert without_the_wait == ["start", "read", "plan", "infer", "assemble", "report"]


# --- refused before anything is written ---


@pytest.mark.parametrize(
    ("sections", "error", "words"),
    [
        ({"prompt": {"user": "{{ documnt }}"}}, InputError, "did you mean 'document'"),
        ({"input": {"path": "nowhere-*.parquet"}}, InputError, "nowhere"),
        ({"evaluate": {"references": "divisor", "metrics": ["f1"]}}, InputError, "divisor"),
        ({"gates": ["hit_rate > 1"]}, ConfigError, "hit_rate"),
        ({"gates": ["f1 > 0.5"], "evaluate": None}, ConfigError, "f1"),
        ({"model": {"id": "no/where/at/all"}}, ModelError, "no/where/at/all"),
        ({"sampling": {"max_tokens": 2048}}, RefusedError, "max_tokens"),
        ({"engine": {"attention": "triton", "device": "cpu"}}, ConfigError, "engine.attention: triton needs a GPU"),
    ],
)
def test_what_is_wrong_is_refused_and_nothing_is_written(tmp_path, monkeypatch, sections, error, words):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("TRITON_INTERPRET")
    with pytest.raises(error, match=words) as refusal:
        api.run(tiny_runs.pipeline(tmp_path / "run", cluster=NOBODY, **sections))
    assert refusal.value.exit_code == 2
    assert not (tmp_path / "run").exists()


def test_a_cluster_that_does_not_answer_is_refused_and_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr("batchpaged.cluster.remote.CONNECT_SECONDS", 1)
    with pytest.raises(RefusedError, match="no Dask scheduler answers") as refusal:
        api.run(tiny_runs.pipeline(tmp_path / "run", cluster=NOBODY))
    assert refusal.value.exit_code == 2
    assert not (tmp_path / "run").exists()


# --- plan ---


def test_plan_counts_what_brute_force_counts(tmp_path):
    report = api.plan(tiny_runs.pipeline(tmp_path / "run"))
    parts = sorted((tiny_runs.finished_run().run_dir / "prompts").glob("*.parquet"))
    prompts = [ids for path in parts for ids in pq.read_table(path)["token_ids"].to_pylist() if ids is not None]
    nodes = {tuple(ids[: i + 1]) for ids in prompts for i in range(len(ids))}
    summary = report.summary
    assert summary.num_rows == tiny_runs.NUM_ROWS and summary.num_failed == len(tiny_runs.FAILED)
    assert summary.num_prompt_tokens == sum(map(len, prompts))
    assert summary.num_unique_tokens == len(nodes)
    assert summary.num_duplicates == sum(n - 1 for n in Counter(map(tuple, prompts)).values())
    assert summary.longest_prompt == max(map(len, prompts))
    assert summary.hit_rate_ceiling == tiny_runs.finished_run().report["prefix_cache_hit_rate_ceiling"]
    assert not (tmp_path / "run").exists()


def test_plan_says_why_prefixes_miss(tmp_path):
    """The documents of these rows differ in a few characters at the start: a number."""
    diagnosis = api.plan(tiny_runs.pipeline(tmp_path / "run", prompt={"user": "{{ id }} " + tiny_runs.USER})).diagnosis
    finding = diagnosis.findings[0]
    assert finding.cause == "varying_field" and finding.way_out.startswith("move {{ id }} behind")
    assert set(finding.example_rows) < {row["id"] for row in tiny_runs.rows()}
    assert 0 < finding.num_tokens < diagnosis.num_prompt_tokens and finding.hit_rate > diagnosis.hit_rate


def test_plan_names_the_rows_that_will_fail(tmp_path):
    report = api.plan(tiny_runs.pipeline(tmp_path / "run"))
    ids = [row["id"] for row in tiny_runs.rows()]
    assert report.num_failed_rows == len(tiny_runs.FAILED)
    assert [row_id for row_id, _ in report.failed_rows] == [ids[ordinal] for ordinal in tiny_runs.FAILED]
    for (_, reason), expected in zip(report.failed_rows, tiny_runs.FAILED.values(), strict=True):
        assert expected in reason
    assert report.kv_bytes_needed > 0 and report.kv_bytes_available > 0 and report.estimated_seconds > 0


# --- validate, status ---


def test_validate_computes_nothing(tmp_path):
    validation = api.validate(tiny_runs.pipeline(tmp_path / "run", cluster=NOBODY))
    assert (validation.num_rows, validation.num_files) == (tiny_runs.NUM_ROWS, len(tiny_runs.SHARDS))
    assert validation.model_path == tiny_runs.model().resolve()
    assert not (tmp_path / "run").exists()
    with pytest.raises(InputError):
        api.validate(tiny_runs.pipeline(tmp_path / "run"), overrides=["prompt.user='{{ nothing_like_it }}'"])


@pytest.fixture
def unfinished():
    return tiny_runs.copy_of_unfinished_run()


def test_status_of_a_finished_run():
    run = tiny_runs.finished_run()
    status = api.status(run.run_dir)
    assert (status.state, status.name, status.run_id) == ("done", "tiny", run.report["run"]["id"])
    assert status.num_units == status.num_units_done and status.num_rows_done == status.num_rows == tiny_runs.NUM_ROWS
    assert status.owner is None and status.started_at <= status.updated_at
    assert status.verdict.startswith(f"{len(tiny_runs.FAILED)} of {tiny_runs.NUM_ROWS} rows failed")


def test_status_of_an_interrupted_run(unfinished):
    status = api.status(unfinished)
    facts = [read_unit_facts(path) for path in (unfinished / "units").glob("*.parquet")]
    assert (status.state, status.num_units_done) == ("interrupted", status.num_units - 2)
    assert status.num_rows_done == sum(unit["num_rows"] for unit in facts)


def test_status_of_a_run_without_a_plan(unfinished):
    (unfinished / "plan.json").unlink()
    status = api.status(unfinished)
    assert (status.state, status.num_units, status.num_rows) == ("not planned", None, None)


def test_status_of_a_running_run_names_its_process_and_a_second_one_is_refused(unfinished):
    hold = "import sys; from batchpaged.run.directory import RunDirectory\n" \
           "with RunDirectory(sys.argv[1]).lock(): print('held', flush=True); sys.stdin.read()"  # fmt: skip
    command = [sys.executable, "-c", hold, str(unfinished)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        status = api.status(unfinished)
        assert status.state == "running" and f"process {other.pid} on " in status.owner
        with pytest.raises(RunDirectoryError, match=f"in use by process {other.pid}"):
            api.run(tiny_runs.pipeline(unfinished, cluster=NOBODY))
        other.kill()
    assert api.status(unfinished).state == "interrupted"


def test_status_of_no_run(tmp_path):
    with pytest.raises(RunDirectoryError, match="has no run.json"):
        api.status(tmp_path)
