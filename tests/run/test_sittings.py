"""Several sittings of one run: a finished one, one that goes on, one that is refused, and what damage does."""

import json
import os
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiny_runs
from tiny_models import save_tiny

from batchpaged import api, runner
from batchpaged.errors import RunDirectoryError, UnfinishedError

NOBODY = {"scheduler": "tcp://127.0.0.1:9"}  # no cluster is there: whoever asked it would be refused


@pytest.fixture
def finished():
    return tiny_runs.copy_of_finished_run()


@pytest.fixture
def unfinished():
    return tiny_runs.copy_of_unfinished_run()


def test_a_finished_run_is_not_run_again(finished):
    before, notes = tiny_runs.snapshot(finished), tiny_runs.Notes()
    result = api.run(tiny_runs.pipeline(finished, cluster=NOBODY), reporter=notes)
    assert (result.report, result.exit_code) == (tiny_runs.finished_run().report, 0)
    assert "finished already" in notes.lines[0] and notes.stages == ["report"]
    written = {name for name, what in tiny_runs.snapshot(finished).items() if before.get(name) != what}
    assert written == {"owner.json", "report.json", "scores.parquet", "report.html", "metrics.prom", "log.jsonl"}


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
    before = tiny_runs.snapshot(finished)
    with pytest.raises(RunDirectoryError) as refusal:
        api.run(tiny_runs.pipeline(finished, cluster=NOBODY, **json.loads(text)))
    assert reason in str(refusal.value) and "--fresh" in str(refusal.value)
    assert tiny_runs.snapshot(finished) == before


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
        patch.setattr("batchpaged.cluster.inference.Inference.run", _stop)
        api.run(pipeline)


def _stop(self, stop):
    raise UnfinishedError("stopped by the test")


# --- going on ---


def test_a_run_goes_on_with_the_units_that_are_missing(unfinished):
    before, notes = tiny_runs.snapshot(unfinished), tiny_runs.Notes()
    more_workers = {"scheduler": tiny_runs.cluster().scheduler_address, "workers": 5}  # units stay as they were cut
    result = api.run(tiny_runs.pipeline(unfinished, cluster=more_workers), reporter=notes)
    after = tiny_runs.snapshot(unfinished)
    kept = [name for name in before if name.startswith(("units", "prompts", "plan", "run.json"))]
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}
    num_before, num_after = (sum(name.startswith("units") for name in files) for files in (before, after))
    assert notes.lines == [f"{num_before} of {num_after} units are finished already"] and num_after == num_before + 2
    assert tiny_runs.output(unfinished).drop(["when", "cached_tokens"]).equals(
        tiny_runs.output(tiny_runs.finished_run().run_dir).drop(["when", "cached_tokens"])
    )
    assert result.report["rows"] == tiny_runs.finished_run().report["rows"]
    assert len(result.report["workers"]) == 2  # engines of two sittings


def test_damaged_units_are_computed_anew(unfinished):
    damages = [lambda path: path.write_bytes(b""), lambda path: os.truncate(path, path.stat().st_size // 2)]
    for unit, damage in zip((1, 3), damages, strict=True):
        damage(unfinished / "units" / f"unit-{unit:06}.parquet")
    notes = tiny_runs.Notes()
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
    for path in (finished / "plan").iterdir():
        path.write_bytes(b"half a plan")
    result = api.run(tiny_runs.pipeline(finished))
    assert result.report["rows"] == tiny_runs.finished_run().report["rows"]


def test_units_without_their_plan_are_not_mixed_with_another(unfinished):
    (unfinished / "plan.json").unlink()
    with pytest.raises(UnfinishedError, match="has units but no plan"):
        api.run(tiny_runs.pipeline(unfinished))


PROMPTS = "prompts/rows-000000000025-000000000054.parquet"


@pytest.mark.parametrize("name", ["plan.json", "plan/from-unit-0000000.parquet", PROMPTS])
def test_a_damaged_plan_is_named(unfinished, name):
    (unfinished / name).write_bytes(b"damaged")
    if name.startswith("prompts"):
        shutil.rmtree(unfinished / "units")
        (unfinished / "plan.json").unlink()
    with tiny_runs.several_parts(), pytest.raises(UnfinishedError, match=f"{Path(name).name} is damaged"):
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


def test_a_run_does_not_read_what_it_writes(tmp_path):
    pq.write_table(pa.table({"t": ["x"]}), tmp_path / "rows.parquet")
    sections = {"input": {"path": str(tmp_path)}, "prompt": {"text_column": "t"}, "evaluate": None, "gates": []}
    for fresh in (False, False, True):
        result = api.run(tiny_runs.pipeline(tmp_path / "run", **sections), fresh=fresh)
        assert result.report["rows"]["total"] == 1


def test_a_run_does_not_write_where_its_input_lies(tmp_path):
    pq.write_table(pa.table({"t": ["x"]}), tmp_path / "rows.parquet")
    sections = {"input": {"path": str(tmp_path)}, "prompt": {"text_column": "t"}, "evaluate": None, "gates": []}
    with pytest.raises(RunDirectoryError, match="holds other files"):
        api.run(tiny_runs.pipeline(tmp_path, **sections))
    assert [path.name for path in tmp_path.iterdir()] == ["rows.parquet"]
