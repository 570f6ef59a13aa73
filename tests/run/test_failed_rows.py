"""Runs with rows that fail: how many may, how they are computed again, and a run in which all do."""

import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiny_runs

from batchpaged import api
from batchpaged.dataset.parts import PartSize
from batchpaged.errors import UnfinishedError
from batchpaged.planning.plan_file import read_plan
from batchpaged.run.directory import RunDirectory
from batchpaged.run.failed_rows import find_failed_rows, read_kept

SMALL = {"kv_cache": 10, "max_sequences": 16, "max_batch_tokens": 256, "device": "cpu"}
COLUMNS = ["id", "completion", "finish_reason", "prompt_tokens", "completion_tokens", "status", "error", "prompt_hash"]


def run(run_dir, retry_failed=False, reporter=None, **sections):
    given = {"gates": [], "evaluate": None, **sections}
    return api.run(tiny_runs.pipeline(run_dir, **given), retry_failed=retry_failed, reporter=reporter)


@pytest.fixture(scope="module")
def small():
    """A run whose cache is too small for many of its rows."""
    run_dir = tiny_runs.new_path("small")
    return run_dir, run(run_dir, engine=SMALL)


def failed_rows(run_dir):
    directory = RunDirectory(run_dir)
    return find_failed_rows(directory, read_plan(run_dir)[0].num_units)


@pytest.fixture(scope="module")
def retried(small):
    """The same run, its failed rows computed with a cache that holds them. -> (before, result, notes)"""
    run_dir, _ = small
    before = (tiny_runs.output(run_dir), failed_rows(run_dir), tiny_runs.snapshot(run_dir / "units"))
    notes = tiny_runs.Notes()
    return before, run(run_dir, retry_failed=True, reporter=notes), notes


def test_failed_rows_are_computed_and_the_others_kept(small, retried):
    (old_rows, failed, old_units), result, notes = retried
    run_dir, first = small
    rows = tiny_runs.output(run_dir)
    assert rows.select(COLUMNS) == tiny_runs.output(tiny_runs.finished_run().run_dir).select(COLUMNS)
    assert failed.num_retried == result.report["rows"]["succeeded"] - first.report["rows"]["succeeded"] > 0
    kept = [i for i, status in enumerate(old_rows["status"].to_pylist()) if status == "ok"]
    assert rows.take(kept) == old_rows.take(kept)
    assert f"failed rows that are computed again: {failed.num_retried}; 5 more have no prompt" in notes.lines[0]
    new_units = tiny_runs.snapshot(run_dir / "units")
    assert new_units.keys() == old_units.keys()  # nothing set aside is left
    changed = {name for name in new_units if new_units[name] != old_units[name]}
    assert changed == {f"unit-{unit:06}.parquet" for unit in failed.units}


def test_the_report_counts_each_time(small, retried):
    report, before = retried[1].report, small[1].report
    assert report["rows"]["failed"] == len(tiny_runs.FAILED)
    tokens = report["tokens"]
    assert tokens["prompt"] == tokens["prefilled"] + tokens["cached"]
    assert tokens["prompt"] == tiny_runs.finished_run().report["tokens"]["prompt"]
    assert len(report["workers"]) == len(before["workers"]) + 1
    assert sum(worker["num_prefilled_tokens"] for worker in report["workers"]) == tokens["prefilled"]
    assert sum(report["misses"].values()) == tokens["prefilled"] + tokens["recomputed"]


def test_nothing_is_left_to_retry(small, retried):
    notes = tiny_runs.Notes()
    result = run(small[0], retry_failed=True, reporter=notes, cluster={"scheduler": "tcp://127.0.0.1:9"})
    assert notes.lines[0].startswith("failed rows that are computed again: 0; 5 more have no prompt")
    assert result.report == retried[1].report


def test_a_retry_that_was_interrupted_goes_on(small, retried):
    run_dir = tiny_runs.copy_of_finished_run()
    directory = RunDirectory(run_dir)
    before = tiny_runs.output(run_dir)
    directory.set_aside([0, 1])
    assert not directory.is_finished and not directory.is_unit_done(0)
    directory.retry_file(1).write_bytes(b"damaged")  # then all of the unit is computed
    assert len(read_kept(directory.retry_file(0))[0]) > 0 and read_kept(directory.retry_file(1)) == ({}, [])
    api.run(tiny_runs.pipeline(run_dir))
    assert tiny_runs.output(run_dir).select(COLUMNS) == before.select(COLUMNS)
    assert not list((run_dir / "units").glob("retry-*"))


def test_a_leftover_of_a_unit_that_is_done_goes(small):
    directory = RunDirectory(tiny_runs.copy_of_finished_run())
    directory.retry_file(0).write_bytes(directory.unit_file(0).read_bytes())
    api.run(tiny_runs.pipeline(directory.path, cluster={"scheduler": "tcp://127.0.0.1:9"}))
    assert not directory.retry_file(0).exists()


def test_retry_of_a_directory_without_a_run_is_a_run():
    run_dir = tiny_runs.new_path("retry")
    assert run(run_dir, retry_failed=True, input={"path": str(tiny_runs.data()), "limit": 3}).exit_code == 0


def test_too_many_rows_without_a_prompt_stop_the_run_before_inference():
    run_dir = tiny_runs.new_path("limit")
    with pytest.raises(UnfinishedError) as caught:
        run(run_dir, max_failed_rows=4)
    assert str(caught.value).startswith("5 rows have failed by now, and max_failed_rows is 4:\n  - 1 row: ")
    assert str(caught.value).count("\n  - 1 row") == 5 and "raise max_failed_rows" in str(caught.value)
    assert not list((run_dir / "units").iterdir())
    assert run(run_dir, max_failed_rows=5).report["rows"]["failed"] == 5


def test_they_stop_it_as_soon_as_they_are_known(tmp_path, monkeypatch):
    """Of a part with too many, the first rows are enough."""
    monkeypatch.setattr("batchpaged.dataset.source.PART_SIZE", PartSize(num_rows=10))
    for name, texts in (("a", [None] * 9000), ("b", ["x"] * 10), ("c", ["y"] * 10)):
        pq.write_table(pa.table({"t": pa.array(texts, pa.string())}), tmp_path / f"{name}.parquet")
    sections = {"input": {"path": str(tmp_path)}, "prompt": {"text_column": "t"}, "evaluate": None, "gates": []}
    with pytest.raises(UnfinishedError, match=r"8192 rows have failed by now.*\n  - 8192 rows: column 't' is null"):
        run(tmp_path / "run", max_failed_rows=100, **sections)
    assert not list((tmp_path / "run/prompts").glob("rows-000000000000-*"))


def test_too_many_rows_that_the_engine_refuses_stop_the_run(small):
    run_dir = tiny_runs.new_path("limit")
    with pytest.raises(UnfinishedError, match="max_failed_rows is 6") as caught:
        run(run_dir, max_failed_rows=6, engine=SMALL)
    assert re.search(r"\n  - \d+ rows?: N tokens do not fit into the KV cache", str(caught.value))
    with pytest.raises(UnfinishedError, match="max_failed_rows is 6"):  # also of units finished before
        run(run_dir, max_failed_rows=6)


def test_a_run_without_a_single_completion_has_failed():
    run_dir = tiny_runs.new_path("hopeless")
    prompt = {"user": "{{ nothing }} {{ document }}" + "long" * 100}
    result = run(run_dir, prompt=prompt)
    assert result.exit_code == 1
    assert result.report["gates"] == [{"gate": "rows.succeeded > 0", "value": 0, "passed": False}]
    output = pq.read_table(run_dir / "output")
    assert output["status"].unique().to_pylist() == ["failed"] and output["completion"].null_count == len(output)
