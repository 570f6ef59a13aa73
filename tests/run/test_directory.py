"""The run directory: whose it is, who may use it, and what of it is whole."""

import json
import os
from types import SimpleNamespace

import filelock
import pyarrow.parquet as pq
import pytest

from batchpaged.errors import RunDirectoryError
from batchpaged.run.directory import RunDirectory
from batchpaged.run.fingerprint import run_identity
from batchpaged.run.unit_file import write_unit

IDENTITY = {"pipeline": {"sampling": {"seed": 0}}, "model": "abc", "input": [{"path": "a", "size": 1}]}
OTHER = {**IDENTITY, "pipeline": {"sampling": {"seed": 1}}}


@pytest.fixture
def directory(tmp_path):
    return RunDirectory(tmp_path / "runs" / "x")


def opened(directory, identity=IDENTITY, fresh=False):
    with directory.lock():
        return directory.open("mine", identity, fresh)


def files(directory):
    return sorted(str(path.relative_to(directory.path)) for path in directory.path.rglob("*"))


def test_a_new_run_is_written_down_and_taken_up(directory):
    directory.check_usable(IDENTITY, fresh=False)
    assert not directory.path.exists()
    info = opened(directory)
    assert info["name"] == "mine" and info["run_id"].startswith("mine-") and info["identity"] == IDENTITY
    directory.check_usable(IDENTITY, fresh=False)
    assert opened(directory) == info == directory.info()
    assert directory.exists and not directory.is_finished


def test_a_run_of_something_else_is_refused_even_if_it_came_between_check_and_lock(directory):
    info = opened(directory)
    words = rf"holds run {info['run_id']} of something else:\n  - sampling.seed: 0 -> 1"
    with pytest.raises(RunDirectoryError, match=words):
        directory.check_usable(OTHER, fresh=False)
    with pytest.raises(RunDirectoryError, match="something else"):
        opened(directory, OTHER)
    assert directory.info() == info


def test_a_run_in_another_format_is_refused(directory):
    opened(directory)
    path = directory.path / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 0}))
    with pytest.raises(RunDirectoryError, match="another version of batchpaged"):
        directory.check_usable(IDENTITY, fresh=False)


def test_fresh_deletes_what_the_run_has_written_and_nothing_else(directory):
    first = opened(directory)
    (directory.path / "notes.txt").write_text("mine")
    (directory.units / "unit-000000.parquet").write_text("x")
    (directory.path / "output").mkdir()
    directory.report.write_text("{}")
    directory.check_usable(OTHER, fresh=True)
    second = opened(directory, OTHER, fresh=True)
    assert second["run_id"] != first["run_id"] and second["identity"] == OTHER
    assert files(directory) == ["lock", "notes.txt", "owner.json", "prompts", "run.json", "sittings", "units"]


@pytest.mark.parametrize("name", ["notes.txt", "output", "units", "report.json"])
@pytest.mark.parametrize("fresh", [False, True])
def test_a_folder_of_somebody_else_is_refused_whatever_its_files_are_called(directory, name, fresh):
    (directory.path / name).mkdir(parents=True)
    with pytest.raises(RunDirectoryError, match=rf"holds other files \({name}\) and no run"):
        directory.check_usable(IDENTITY, fresh)
    assert files(directory) == [name]


def test_half_written_files_of_a_killed_sitting_go(directory):
    opened(directory)
    half = ("units/.unit-000000.parquet.x.tmp", "prompts/.part-00000.parquet.x.tmp", ".plan.json.x.tmp", "plan/.part-0.x.tmp")
    (directory.path / "plan").mkdir()
    for name in (*half, "units/unit-000001.parquet"):
        (directory.path / name).touch()
    opened(directory)
    assert not list(directory.path.rglob(".*"))
    assert os.listdir(directory.units) == ["unit-000001.parquet"] and os.listdir(directory.prompts) == []


def test_what_an_interrupted_start_over_has_left_can_be_used(directory):
    opened(directory)
    (directory.path / "run.json").unlink()
    directory.check_usable(IDENTITY, fresh=False)
    opened(directory)


def test_hidden_files_do_not_matter(directory):
    directory.path.mkdir(parents=True)
    (directory.path / ".DS_Store").touch()
    directory.check_usable(IDENTITY, fresh=False)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"identity": 1, "fingerprint": ""}'])
def test_an_unreadable_run_is_refused_unless_it_is_to_be_discarded(directory, content):
    opened(directory)
    (directory.path / "run.json").write_text(content)
    with pytest.raises(RunDirectoryError, match="run.json cannot be read; use --fresh"):
        directory.check_usable(IDENTITY, fresh=False)
    directory.check_usable(IDENTITY, fresh=True)
    assert opened(directory, fresh=True)["identity"] == IDENTITY


def test_what_is_no_folder_is_refused(directory):
    directory.path.parent.mkdir()
    directory.path.touch()
    with pytest.raises(RunDirectoryError, match="cannot be used as a run directory"):
        directory.check_usable(IDENTITY, fresh=False)
    below = RunDirectory(directory.path / "below")
    with pytest.raises(RunDirectoryError):
        below.check_usable(IDENTITY, fresh=False)
        opened(below)


@pytest.mark.parametrize("step", ["Path.mkdir", "write_text", "RunDirectory.clear"])
def test_where_nothing_can_be_written_is_refused(directory, monkeypatch, step):
    def fail(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(f"batchpaged.run.directory.{step}", fail)
    with pytest.raises(RunDirectoryError, match=r"nothing can be written there \(No space left on device\)"):
        opened(directory)


def test_a_locked_run_is_refused_with_its_owner(directory):
    opened(directory)
    assert directory.owner() is None
    with directory.lock():
        owner = RunDirectory(directory.path).owner()
        assert owner["pid"] == os.getpid() and owner["started_at"]
        with pytest.raises(RunDirectoryError, match=rf"in use by process {os.getpid()} on {owner['host']} since .* \(\d+s\); wait"):
            RunDirectory(directory.path).check_usable(IDENTITY, fresh=True)
        with pytest.raises(RunDirectoryError, match="give another --run-dir"), RunDirectory(directory.path).lock():
            pass
    assert directory.owner() is None


def test_a_lock_without_an_owner_file_is_a_lock_all_the_same(directory):
    opened(directory)
    (directory.path / "owner.json").write_text("{")
    with filelock.FileLock(directory.path / "lock"):
        assert directory.owner() == {"pid": None, "host": None, "started_at": None}


def test_a_lock_ends_with_its_block_even_if_that_fails(directory):
    with pytest.raises(ZeroDivisionError), directory.lock():
        raise ZeroDivisionError
    assert directory.owner() is None


def replace_rows(path):
    """A sound file of as many rows, but not of those that its checksum is of."""
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({**table.schema.metadata, b"batchpaged.checksum": b"0"}), path)


def test_finished_units_are_those_whose_files_are_whole(directory):
    opened(directory)
    for unit in range(5):
        write_unit(directory.unit_file(unit), [], {"unit": unit, "num_rows": 0})
    directory.unit_file(1).write_bytes(b"PAR1")
    replace_rows(directory.unit_file(4))
    directory.unit_file(3).unlink()
    (directory.units / ".unit-000003.parquet.tmp").write_bytes(b"half")
    facts, num_damaged = directory.finished_units(5)
    assert facts == {0: {"unit": 0, "num_rows": 0}, 2: {"unit": 2, "num_rows": 0}} and num_damaged == 2
    assert not directory.is_unit_done(1) and not directory.is_unit_done(4)


def test_a_unit_that_the_system_will_not_read_is_not_taken_for_damaged(directory, monkeypatch):
    opened(directory)
    write_unit(directory.unit_file(0), [], {"num_rows": 0})

    def fail(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("batchpaged.run.unit_file.pq.read_metadata", fail)
    with pytest.raises(PermissionError):
        directory.finished_units(1)
    assert directory.is_unit_done(0)


def test_times_come_from_the_files(directory):
    assert directory.updated_at() is None
    opened(directory)
    (directory.path / "output").mkdir()
    (directory.path / "output" / "_SUCCESS").touch()
    os.utime(directory.path / "output" / "_SUCCESS", (0, 86_400))
    assert directory.finished_at() == "1970-01-02T00:00:00+00:00"
    assert directory.updated_at() > "2020"


def test_rows_in_memory_count_by_what_they_are():
    pipeline = _Pipeline()
    first, second = (run_identity(pipeline, "m", [{"path": path}], "digest") for path in ("/tmp/1", "/tmp/2"))
    assert first == second != run_identity(pipeline, "m", [{"path": "/tmp/1"}], "other")


class _Pipeline:
    engine = SimpleNamespace(kv_dtype="auto")
    stages = ()

    def model_dump(self, mode, include):
        return {name: {} for name in include}
