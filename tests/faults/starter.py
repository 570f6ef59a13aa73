"""Forks a process for each line of its input, [folder, settings of the fault]; see faulty_runs.Starter.

It has one thread, so that what is forked from it holds nobody's lock.
"""

import json
import os
import signal
import sys
import time
import traceback

import sitecustomize

import batchpaged.api  # noqa: F401 - so that no sitting has to
import batchpaged.cluster.graph  # noqa: F401
import batchpaged.engine.build  # noqa: F401
from batchpaged.cli import main
from batchpaged.dataset import source
from batchpaged.dataset.parts import PartSize

source.PART_SIZE = PartSize(num_files=1)  # small files, of which one part would be made
PATIENCE = 120  # seconds, on a machine that is busy with other things


def sit(folder: str, settings: str) -> None:
    """In the forked process; does not come back."""
    os.setsid()
    os.chdir(folder)
    os.environ[sitecustomize.VARIABLE] = settings
    sitecustomize.SETTINGS.read()
    output = os.open("output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv = ["batchpaged", "run", "pipeline.yaml"]
    exit_code = 1
    try:
        main()
    except SystemExit as end:
        exit_code = end.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(exit_code)


def wait(pid: int) -> int:
    """-> exit code, negative for a signal; whatever is left of the session is killed."""
    end = time.monotonic() + PATIENCE
    while (status := os.waitpid(pid, os.WNOHANG))[0] == 0 and time.monotonic() < end:
        time.sleep(0.01)
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    status = status if status[0] else os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status[1])


if __name__ == "__main__":
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            sit(*json.loads(line))
        print(wait(pid), flush=True)
