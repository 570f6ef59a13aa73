"""A cluster whose scheduler is killed in the middle of a run."""

import subprocess
import sys
import time

import pytest
import tiny_runs
from distributed import Client

from batchpaged import api
from batchpaged.cluster import remote
from batchpaged.errors import UnfinishedError


@pytest.fixture
def cluster(tmp_path):
    """-> its scheduler file, and the scheduler's process."""
    file = tmp_path / "scheduler.json"
    common = ["--scheduler-file", str(file), "--no-dashboard"]
    commands = [
        ["distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0", *common],
        ["distributed.cli.dask_worker", "--no-nanny", "--nthreads", "4", "--memory-limit", "0", *common],
    ]
    processes = [subprocess.Popen([sys.executable, "-m", *command], stderr=subprocess.DEVNULL) for command in commands]
    try:
        while not file.exists():
            time.sleep(0.05)
        with Client(scheduler_file=str(file), set_as_default=False) as client:
            client.wait_for_workers(1, timeout=60)
        yield file, processes[0]
    finally:
        for process in processes:
            process.kill()
            process.wait()


class Killer(tiny_runs.Notes):
    """Kills when the first unit is done."""

    def __init__(self, process, units):
        super().__init__()
        self._process, self._units = process, units

    def update(self, progress):
        super().update(progress)
        if progress.stage == "infer" and any(self._units.glob("unit-*.parquet")):
            self._process.kill()


def test_a_lost_scheduler_ends_the_run_which_goes_on_with_another_cluster(cluster, tmp_path, monkeypatch):
    file, scheduler = cluster
    run_dir = tmp_path / "run"
    sampling = {"max_tokens": 20, "ignore_eos": True}
    engine = {"kv_cache": 300, "max_sequences": 2, "device": "cpu"}
    sections = {"sampling": sampling, "engine": engine, "gates": []}
    monkeypatch.setattr(remote, "CONNECT_SECONDS", 5)  # it looks for its scheduler as long as for a new one
    with pytest.raises(UnfinishedError, match="connection to the Dask cluster was lost; run the same command again"):
        api.run(
            tiny_runs.pipeline(run_dir, cluster={"scheduler": str(file)}, **sections),
            reporter=Killer(scheduler, run_dir / "units"),
        )
    before = {name: what for name, what in tiny_runs.snapshot(run_dir).items() if name.startswith("units/unit")}
    result = api.run(tiny_runs.pipeline(run_dir, **sections))
    assert before and before.items() <= tiny_runs.snapshot(run_dir).items()
    assert result.report["rows"]["total"] == tiny_runs.NUM_ROWS
    assert tiny_runs.output(run_dir, ["id"])["id"].to_pylist() == [row["id"] for row in tiny_runs.rows()]
