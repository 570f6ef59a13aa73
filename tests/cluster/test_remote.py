"""A running cluster: found by address or file, asked whether it can be used, and left as it was."""

import json
from types import SimpleNamespace

import pytest
import tiny_runs
from distributed import LocalCluster

from batchpaged import api
from batchpaged.cluster import remote
from batchpaged.cluster.remote import remote_client
from batchpaged.errors import ClusterError


def connect(scheduler, notes=None):
    return remote_client(scheduler, (notes if notes is not None else []).append)


def test_a_run_finds_the_cluster_by_its_scheduler_file_and_workers_need_not_share_its_folder(tmp_path, monkeypatch):
    identity = {**tiny_runs.cluster().scheduler.identity(), "workers": {}}  # what is known of workers is no JSON
    (tmp_path / "scheduler.json").write_text(json.dumps(identity, default=str))
    (tmp_path / "data").symlink_to(tiny_runs.data())
    (tmp_path / "model").symlink_to(tiny_runs.model())
    monkeypatch.chdir(tmp_path)  # the worker stays where it was started
    pipeline = tiny_runs.pipeline(
        "run",
        input={"path": "data", "id_column": "id", "limit": 10},
        model={"id": "./model", "max_model_len": 320},
        gates=[],
        cluster={"scheduler": "scheduler.json"},
    )
    assert api.run(pipeline).report["rows"]["total"] == 10
    assert (tmp_path / "run" / "output" / "_SUCCESS").exists()


@pytest.mark.parametrize("scheduler", ["tcp://127.0.0.1:9", "no-such-file.json", "nonsense://x"])
def test_where_nothing_answers(scheduler, monkeypatch):
    monkeypatch.setattr(remote, "CONNECT_SECONDS", 0.5)
    with pytest.raises(ClusterError, match="no Dask scheduler answers at cluster.scheduler = "), connect(scheduler):
        pass


def test_a_cluster_without_workers_is_refused():
    with LocalCluster(n_workers=0, processes=False, dashboard_address=None) as cluster:
        with pytest.raises(ClusterError, match="has no workers; start some"), connect(cluster.scheduler_address):
            pass


def test_one_run_at_a_time(monkeypatch):
    monkeypatch.setattr(remote, "BUSY_SECONDS", 0.1)
    address, notes = tiny_runs.cluster().scheduler_address, []
    with connect(address):
        with pytest.raises(ClusterError, match="busy with another run"), connect(address, notes):
            pass
    assert len(notes) == 1 and "waiting for up to" in notes[0]
    with connect(address, notes):  # as soon as the other has left
        assert len(notes) == 1


def test_workers_of_another_version_are_refused():
    client = SimpleNamespace(run=lambda function: {"tcp://a": function(), "tcp://b": "0.0.1"})
    with pytest.raises(ClusterError, match="batchpaged {'tcp://b': '0.0.1'}, here it is"):
        remote._check_versions(client, "tcp://x")


def test_workers_without_batchpaged_are_refused():
    def run(function):
        raise ModuleNotFoundError("No module named 'batchpaged'")

    with pytest.raises(ClusterError, match="cannot run batchpaged .* in an environment like this one"):
        remote._check_versions(SimpleNamespace(run=run), "tcp://x")
