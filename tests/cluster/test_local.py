import inspect
import logging
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
import tiny_runs

from batchpaged.cluster import local
from batchpaged.config import ClusterConfig
from batchpaged.errors import ClusterError


@pytest.mark.parametrize(
    ("workers", "device", "num_gpus", "expected"),
    [("auto", "cpu", 4, 1), ("auto", "auto", 0, 1), ("auto", "auto", 4, 4), ("auto", "cuda", 2, 2), (3, "auto", 4, 3)],
)
def test_one_worker_per_gpu_or_else_one(monkeypatch, workers, device, num_gpus, expected):
    monkeypatch.setattr("torch.cuda.device_count", lambda: num_gpus)
    monkeypatch.setattr(local, "_may_have_gpu", lambda: num_gpus > 0)
    assert local.num_local_workers(ClusterConfig(workers=workers), device) == expected


@pytest.mark.parametrize(
    ("workers", "hosts", "expected"),
    [
        ("auto", ["a"], (1, 1)),
        ("auto", ["a", "b", "b"], (3, 2)),
        (1, ["a", "a"], (1, 1)),
        (9, ["a", "a"], (2, 2)),
        ("auto", [], (1, 1)),  # all are being started again
    ],
)
def test_workers_are_counted_in_all_and_by_host(workers, hosts, expected):
    info = {"workers": {str(i): {"host": host} for i, host in enumerate(hosts)}}
    client = SimpleNamespace(scheduler_info=lambda n_workers: info)
    assert local.count_workers(client, ClusterConfig(workers=workers)) == expected


def test_a_local_cluster_that_does_not_start_is_told_where_its_client_is_wanted(monkeypatch):
    def fail(**kwargs):
        raise OSError("too many open files")

    monkeypatch.setattr(local, "LocalCluster", fail)
    with local.connecting(ClusterConfig(), "cpu", print) as get_client:
        with pytest.raises(ClusterError, match="local Dask cluster did not start .*too many open files"):
            get_client()


def test_a_failure_inside_the_block_waits_for_the_cluster_and_takes_it_down(monkeypatch):
    events = []

    class Cluster:
        def __init__(self, **kwargs):
            events.append("up")

        def __enter__(self):
            return self

        def __exit__(self, *error):
            events.append("down")

    client = SimpleNamespace(close=lambda: events.append("closed"), scheduler_info=lambda n_workers: {"workers": {}})
    monkeypatch.setattr(local, "LocalCluster", Cluster)
    monkeypatch.setattr(local, "Client", lambda *args, **kwargs: client)
    with pytest.raises(ZeroDivisionError), local.connecting(ClusterConfig(), "cpu", print):
        raise ZeroDivisionError
    assert events == ["up", "closed", "down"]


def test_loggers_of_dask_are_quiet_inside_and_as_before_outside():
    logger = logging.getLogger("distributed.client")
    before = logger.level
    with local._quiet():
        assert not logger.isEnabledFor(logging.ERROR)
        assert not logging.getLogger("distributed").isEnabledFor(logging.ERROR)
    assert logger.level == before


def test_the_main_module_is_hidden_inside_and_as_before_outside():
    main = sys.modules["__main__"]
    before = {name: getattr(main, name, "none") for name in ("__file__", "__spec__")}
    with local._without_main_module():
        assert getattr(main, "__file__", None) is None and main.__spec__ is None
    assert {name: getattr(main, name, "none") for name in ("__file__", "__spec__")} == before


def test_the_source_of_other_modules_can_be_asked_for_inside():
    """torch does so while its modules are imported, and the module map of `inspect` goes through the main one."""
    with local._without_main_module():
        inspect.modulesbyfile.clear()
        assert inspect.getmodule(local._quiet.__wrapped__.__code__) is local


SCRIPT = """
import sys
print("running as", __name__)
import batchpaged
rows = [{"q": "a"}, {"q": "b"}]
result = batchpaged.generate(rows, model={"id": sys.argv[1], "max_model_len": 64}, prompt="{{ q }}",
                             sampling={"max_tokens": 2}, engine={"kv_cache": 8, "device": "cpu"})
print(len(result.data), [row["status"] for row in result.data])
"""


def test_a_script_needs_no_main_guard(tmp_path):
    """And on a cluster of its own, which is the usual case, everything ends without a word."""
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "script.py", str(tiny_runs.model())]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == ["running as __main__", "2 ['ok', 'ok']"]
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="Windows has no signal masks")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_processes_started_by_the_clusters_thread_do_not_hear_interrupts(name):
    if getattr(signal, name) not in local.BLOCKED:
        pytest.skip("nobody can ask here who sent it")
    code = (
        "import subprocess, sys, threading; from batchpaged.cluster import local\n"
        f"child = 'import signal; print(signal.{name} in signal.pthread_sigmask(signal.SIG_BLOCK, []))'\n"
        "def start(): local._block_signals(); subprocess.run([sys.executable, '-c', child])\n"
        "thread = threading.Thread(target=start); thread.start(); thread.join()\n"
        "subprocess.run([sys.executable, '-c', child])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ)
    assert done.stdout.split() == ["True", "False"]
