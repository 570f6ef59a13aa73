"""run, plan, validate and status: what they take, give back, refuse, and leave on disk."""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import tiny_runs
import yaml
from tiny_models import save_tiny

import batchpaged
from batchpaged import api, runner
from batchpaged.config import Pipeline, parse_pipeline
from batchpaged.errors import ConfigError, InputError, ModelError, RefusedError, RunDirectoryError, UnfinishedError
from batchpaged.run.progress import NullReporter
from batchpaged.run.unit_file import read_unit_facts

NOBODY = {"scheduler": "tcp://127.0.0.1:9"}  # no cluster is there: whoever asked it would be refused


class Notes(NullReporter):
    def __init__(self):
        self.lines = []
        self.stages = []

    def note(self, message):
        self.lines.append(message)

    def update(self, progress):
        if progress.stage not in self.stages[-1:]:
            self.stages.append(progress.stage)


@pytest.fixture
def finished():
    """A copy of a finished run, to be changed."""
    target = tiny_runs.new_path("copy")
    shutil.copytree(tiny_runs.finished_run().run_dir, target)
    return target


@pytest.fixture
def unfinished(finished):
    """The same as it was when two of its units were missing and nothing was assembled."""
    shutil.rmtree(finished / "output")
    (finished / "report.json").unlink()
    for unit in (0, 2):
        (finished / "units" / f"unit-{unit:06}.parquet").unlink()
    return finished


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    """Inode and time of each file."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}


# --- what run takes ---


@pytest.mark.parametrize("kind", ["mapping", "path", "pipeline"])
def test_a_pipeline_is_a_mapping_a_file_or_a_pipeline(kind, tmp_path, monkeypatch):
    given = []
    monkeypatch.setattr(api, "run_pipeline", lambda *args: given.append(args))
    mapping = tiny_runs.pipeline(tmp_path / "run")
    (tmp_path / "pipeline.yaml").write_text(yaml.safe_dump(mapping))
    api.run({"mapping": mapping, "path": str(tmp_path / "pipeline.yaml"), "pipeline": parse_pipeline(mapping)}[kind])
    [(pipeline, reporter, run_dir, fresh)] = given
    assert isinstance(pipeline, Pipeline) and pipeline == parse_pipeline(mapping)
    assert (run_dir, fresh) == (None, False)


def test_the_package_itself_is_the_function(tmp_path, monkeypatch):
    monkeypatch.setattr(api, "run_pipeline", lambda *args: "ran")
    assert batchpaged.run(tiny_runs.pipeline(tmp_path)) == "ran"


def test_overrides_limit_and_run_directory(tmp_path):
    pipeline = tiny_runs.pipeline(tmp_path / "not here", gates=[])
    result = api.run(pipeline, overrides=["sampling.max_tokens=3"], limit=5, run_dir=tmp_path / "here")
    assert result.run_dir == tmp_path / "here" and not (tmp_path / "not here").exists()
    rows = tiny_runs.output(result.run_dir).to_pylist()
    assert [row["id"] for row in rows] == [row["id"] for row in tiny_runs.rows()[:5]]
    assert {row["completion_tokens"] for row in rows} <= {1, 2, 3}


def test_stages_are_reported_in_order(tmp_path):
    notes = Notes()
    api.run(tiny_runs.pipeline(tmp_path / "run"), limit=5, overrides=["gates=[]"], reporter=notes)
    assert notes.stages == ["load", "read", "plan", "infer", "assemble", "report"]


# --- a finished run ---


def test_a_finished_run_is_not_run_again(finished):
    before, notes = snapshot(finished), Notes()
    result = api.run(tiny_runs.pipeline(finished, cluster=NOBODY), reporter=notes)
    assert (result.report, result.exit_code) == (tiny_runs.finished_run().report, 0)
    assert "finished already" in notes.lines[0] and notes.stages == ["report"]
    written = {name for name, what in snapshot(finished).items() if before.get(name) != what}
    assert written == {"owner.json", "report.json", "report.html", "metrics.prom"}


def test_a_gate_that_fails_is_exit_code_1_and_gates_and_metrics_may_change_afterwards(finished):
    sections = {"gates": ["failed_rows <= 0"], "evaluate": None, "engine": {"block_size": 32}, "cluster": NOBODY}
    result = api.run(tiny_runs.pipeline(finished, **sections))
    assert result.exit_code == 1
    assert result.report["gates"] == [{"gate": "failed_rows <= 0", "value": 5, "passed": False}]
    assert result.report["evaluation"] is None
    assert result.report["run"] == tiny_runs.finished_run().report["run"]


def test_fresh_starts_over(finished):
    before = json.loads((finished / "run.json").read_text())
    result = api.run(tiny_runs.pipeline(finished, sampling={"max_tokens": 2}, gates=[]), fresh=True)
    assert result.report["run"]["id"] != before["run_id"]
    assert result.report["tokens"]["completion"] <= 2 * result.report["rows"]["succeeded"]


@pytest.fixture(scope="module")
def other_model():
    return save_tiny(tiny_runs.new_path("other-model"), seed=1)


CHANGES = {
    "prompt.user changed": {"prompt": {"user": "{{ document }} {{ questions | first }}", "system": tiny_runs.SYSTEM}},
    "prompt.system changed": {"prompt": {"user": tiny_runs.USER}},
    "sampling.max_tokens: 8 -> 7": {"sampling": {"max_tokens": 7}},
    "input.limit: None -> 9": {"input": {"path": "DATA", "id_column": "id", "limit": 9}},
    "input.id_column: 'id' -> None": {"input": {"path": "DATA"}},
    "model.max_model_len: 320 -> 319": {"model": {"id": "MODEL", "max_model_len": 319}},
    "the model's files are not the same": {"model": {"id": "OTHER", "max_model_len": 320}},
}


@pytest.mark.parametrize("reason", CHANGES)
def test_a_run_of_something_else_is_refused_with_what_changed(finished, reason, other_model):
    text = json.dumps(CHANGES[reason]).replace("DATA", str(tiny_runs.data()))
    text = text.replace("MODEL", str(tiny_runs.model())).replace("OTHER", str(other_model))
    before = snapshot(finished)
    with pytest.raises(RunDirectoryError) as refusal:
        api.run(tiny_runs.pipeline(finished, cluster=NOBODY, **json.loads(text)))
    assert reason in str(refusal.value) and "--fresh" in str(refusal.value)
    assert snapshot(finished) == before


def test_a_changed_input_file_is_refused(tmp_path):
    shutil.copytree(tiny_runs.data(), tmp_path / "data")
    pipeline = tiny_runs.pipeline(tmp_path / "run", input={"path": str(tmp_path / "data")})
    with pytest.raises(UnfinishedError):  # no model is loaded for a run that is only planned
        _run_until_planned(pipeline)
    table = pq.read_table(tmp_path / "data" / "d.parquet")
    pq.write_table(table.slice(1), tmp_path / "data" / "d.parquet")
    os.remove(tmp_path / "data" / "a.parquet")
    with pytest.raises(RunDirectoryError) as refusal:
        api.run(pipeline)
    assert "input file changed: " in str(refusal.value) and "d.parquet" in str(refusal.value)
    assert "input file removed: " in str(refusal.value) and "a.parquet" in str(refusal.value)


def _run_until_planned(pipeline):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("batchpaged.cluster.graph._Inference.run", _stop)
        api.run(pipeline)


def _stop(self):
    raise UnfinishedError("stopped by the test")


# --- going on ---


def test_a_run_goes_on_with_the_units_that_are_missing(unfinished):
    before, notes = snapshot(unfinished / "units"), Notes()
    result = api.run(tiny_runs.pipeline(unfinished), reporter=notes)
    after = snapshot(unfinished / "units")
    assert {name: after[name] for name in before} == before and len(after) == len(before) + 2
    assert notes.lines == [f"{len(before)} of {len(after)} units are finished already"]
    assert tiny_runs.output(unfinished).drop(["when", "cached_tokens"]).equals(
        tiny_runs.output(tiny_runs.finished_run().run_dir).drop(["when", "cached_tokens"])
    )
    assert result.report["rows"] == tiny_runs.finished_run().report["rows"]
    assert len(result.report["workers"]) == 2  # engines of two sittings


def test_damaged_units_are_computed_anew(unfinished):
    damages = [lambda path: path.write_bytes(b""), lambda path: os.truncate(path, path.stat().st_size // 2)]
    for unit, damage in zip((1, 3), damages, strict=True):
        damage(unfinished / "units" / f"unit-{unit:06}.parquet")
    notes = Notes()
    api.run(tiny_runs.pipeline(unfinished), reporter=notes)
    assert "2 units were damaged on disk and are computed again" in notes.lines
    assert tiny_runs.output(unfinished, ["completion"]).equals(
        tiny_runs.output(tiny_runs.finished_run().run_dir, ["completion"])
    )


def test_half_a_plan_is_no_plan(finished):
    for name in ("units", "output"):
        shutil.rmtree(finished / name)
    for name in ("plan.json", "report.json"):
        (finished / name).unlink()
    (finished / "plan.parquet").write_bytes(b"half a plan")
    result = api.run(tiny_runs.pipeline(finished))
    assert result.report["rows"] == tiny_runs.finished_run().report["rows"]


def test_units_without_their_plan_are_not_mixed_with_another(unfinished):
    (unfinished / "plan.json").unlink()
    with pytest.raises(UnfinishedError, match="has units but no plan"):
        api.run(tiny_runs.pipeline(unfinished))


@pytest.mark.parametrize("name", ["plan.json", "plan.parquet", "prompts/part-00001.parquet"])
def test_a_damaged_plan_is_named(unfinished, name):
    (unfinished / name).write_bytes(b"damaged")
    if name.startswith("prompts"):
        shutil.rmtree(unfinished / "units")
        (unfinished / "plan.json").unlink()
    with pytest.raises(UnfinishedError, match=f"{Path(name).name} is damaged"):
        api.run(tiny_runs.pipeline(unfinished))


def test_a_full_disk_leaves_the_run_unfinished(finished, monkeypatch):
    def fail(*args):
        raise OSError(28, "No space left on device", str(finished / "report.html"))

    monkeypatch.setattr(runner, "write_html", fail)
    with pytest.raises(UnfinishedError, match="report.html: No space left on device"):
        api.run(tiny_runs.pipeline(finished))


def test_a_model_that_cannot_be_loaded_is_said_at_once(tmp_path):
    """Its files look whole, so it is not refused before; the workers find out."""
    from safetensors.torch import load_file, save_file

    folder = shutil.copytree(tiny_runs.model(), tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(UnfinishedError, match="weights model.norm.weight are missing"):
        api.run(tiny_runs.pipeline(tmp_path / "run", model={"id": str(folder), "max_model_len": 320}))


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
        ({"engine": {"attention": "triton"}}, ConfigError, "triton"),
    ],
)
def test_what_is_wrong_is_refused_and_nothing_is_written(tmp_path, monkeypatch, sections, error, words):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
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


def test_status_of_a_finished_run():
    run = tiny_runs.finished_run()
    status = api.status(run.run_dir)
    assert (status.state, status.name, status.run_id) == ("done", "tiny", run.report["run"]["id"])
    assert status.num_units == status.num_units_done and status.num_rows_done == status.num_rows == tiny_runs.NUM_ROWS
    assert status.owner is None and status.started_at <= status.updated_at


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
