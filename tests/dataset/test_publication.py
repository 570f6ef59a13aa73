import os
from pathlib import Path

import pytest

from batchpaged.dataset import sink
from batchpaged.dataset.sink import assemble
from batchpaged.errors import InputError, UnfinishedError

UNITS = [[9, 0, 4], [5, 1], [8, 7, 3, 2, 6]]


def test_an_older_output_is_replaced(source, tmp_path, write_units):
    units = write_units(tmp_path / "units", UNITS)
    (tmp_path / "out").mkdir()
    (tmp_path / "out/old.parquet").write_text("old")
    assemble(source, units, tmp_path / "out")
    assemble(source, units, tmp_path / "out")
    assert sorted(os.listdir(tmp_path / "out")) == ["_SUCCESS", "a.parquet", "b.parquet", "c.parquet"]
    assert sorted(os.listdir(tmp_path)) == ["input", "out", "units"]


def test_a_failure_leaves_the_older_output_as_it_was(source, tmp_path, write_units):
    units = write_units(tmp_path / "units", UNITS)
    assemble(source, units, tmp_path / "out")
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    with pytest.raises(UnfinishedError):
        assemble(source, write_units(units, UNITS[:-1]), tmp_path / "out")
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


class Killed(BaseException):
    """Stands for a process that is gone at this point."""


def kill(*_arguments, **_options):
    raise Killed


@pytest.mark.parametrize("is_older_there", [False, True])
@pytest.mark.parametrize("point", ["spread_units", "load_window", "_write_success", "_publish", "rename", "rmtree"])
def test_killed_anywhere_the_next_try_publishes_and_leaves_nothing(
    source, tmp_path, monkeypatch, point, is_older_there, write_units
):
    units, out = write_units(tmp_path / "units", UNITS), tmp_path / "out"
    if is_older_there:
        out.mkdir()
        (out / "old").touch()
    with monkeypatch.context() as patch:
        patch.setattr(sink.shutil, "rmtree", kill if point == "rmtree" else lambda *a, **k: None)  # no cleaning either
        if point == "rename":
            rename = Path.rename
            patch.setattr(Path, "rename", lambda path, to: kill() if path.name == ".out.tmp" else rename(path, to))
        elif point != "rmtree":
            patch.setattr(sink, point, kill)
        with pytest.raises(Killed):
            assemble(source, units, out)
    assert not out.exists() or sorted(os.listdir(out)) in (["old"], ["_SUCCESS", "a.parquet", "b.parquet", "c.parquet"])
    assemble(source, units, out)
    assert sorted(os.listdir(out)) == ["_SUCCESS", "a.parquet", "b.parquet", "c.parquet"]
    assert sorted(os.listdir(tmp_path)) == ["input", "out", "units"]


def test_an_output_that_was_moved_aside_comes_back(source, tmp_path, write_units):
    (tmp_path / ".out.old").mkdir()
    (tmp_path / ".out.old/kept").touch()
    with pytest.raises(UnfinishedError):
        assemble(source, write_units(tmp_path / "units", []), tmp_path / "out")
    assert os.listdir(tmp_path / "out") == ["kept"]


def test_success_is_written_after_every_file_is_synced(source, tmp_path, monkeypatch, write_units):
    synced = []
    monkeypatch.setattr(sink, "_sync", lambda path: synced.append(path.name))
    assemble(source, write_units(tmp_path / "units", UNITS), tmp_path / "out")
    assert synced == ["a.parquet", "b.parquet", "c.parquet", "_SUCCESS", ".out.tmp", tmp_path.name]


def test_a_full_disk_is_an_unfinished_run(source, tmp_path, monkeypatch, write_units):
    def fail(*_arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sink, "_sync", fail)
    with pytest.raises(UnfinishedError, match="No space left on device"):
        assemble(source, write_units(tmp_path / "units", UNITS), tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == ["input", "units"]


def test_an_input_that_changed_is_refused(source, tmp_path, write_units):
    os.utime(tmp_path / "input/c.parquet", ns=(1, 1))
    with pytest.raises(InputError, match="changed since"):
        assemble(source, write_units(tmp_path / "units", UNITS), tmp_path / "out")
    assert not (tmp_path / "out").exists()
