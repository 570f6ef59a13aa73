"""A worker's SIGTERM: heeded from the client, and from nobody else."""

import signal
import subprocess
import sys

import pytest

from batchpaged.cluster.worker_signals import EXIT_CODE

WORKER = """
import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
from batchpaged.cluster.worker_signals import dask_setup
dask_setup(None)
for line in sys.stdin:
    print(line, end="", flush=True)
"""
SEND = "import os, signal, sys; os.kill(int(sys.argv[1]), signal.SIGTERM)"


@pytest.mark.skipif(not hasattr(signal, "sigwaitinfo"), reason="nobody can ask here who sent a signal")
def test_a_worker_ends_by_the_client_s_signal_alone():
    with subprocess.Popen([sys.executable, "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
        for line in ("begun\n", "still there\n", "and still\n"):
            worker.stdin.write(line)
            worker.stdin.flush()
            assert worker.stdout.readline() == line
            subprocess.run([sys.executable, "-c", SEND, str(worker.pid)], check=True)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(timeout=60) == EXIT_CODE
