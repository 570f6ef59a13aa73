"""A disk of a MiB that fills up: the run stops and says so, and goes on when there is room."""

import subprocess

import pytest
import tiny_runs

from batchpaged import api
from batchpaged.errors import RunDirectoryError, UnfinishedError

DISK_KIB = 1024


@pytest.fixture(scope="module")
def disk():
    path = tiny_runs.new_path("disk")
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_KIB}k", "batchpaged-tests", path]
    if subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("this system lets us mount nothing")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", path], check=True)


@pytest.mark.parametrize("room_kib", [0, 28, 64, 140])
def test_a_run_on_a_full_disk_stops_and_goes_on(disk, room_kib):
    run_dir, ballast = disk / f"run-{room_kib}", disk / "ballast"
    free_kib = DISK_KIB - sum(-(-path.stat().st_size // 4096) * 4 for path in disk.rglob("*"))
    ballast.write_bytes(bytes(max(0, free_kib - room_kib) * 1024))
    with pytest.raises((RunDirectoryError, UnfinishedError), match="No space left on device"):
        api.run(tiny_runs.pipeline(run_dir))
    ballast.unlink()
    result = api.run(tiny_runs.pipeline(run_dir))
    assert result.report["rows"] == tiny_runs.finished_run().report["rows"]
    assert not list(run_dir.rglob(".*"))
    columns = ["id", "completion", "status", "error"]
    assert tiny_runs.output(run_dir, columns).equals(tiny_runs.output(tiny_runs.finished_run().run_dir, columns))
    subprocess.run(["rm", "-rf", run_dir], check=True)
