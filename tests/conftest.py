"""Settings of all tests."""

import os
import signal
import sys
import threading
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# A shell that starts us in the background has Ctrl-C ignored, by us and by the runs that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

# One thread each, in this process and those it starts: tests share their machine. Before torch is imported, which many
# tests never do.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MKL_NUM_THREADS"] = "1"
# The kernels' own threads are as many as ever. Those that spin while they wait bring a shared machine to a standstill:
# with two processes on two cores a step of milliseconds took seconds.
os.environ["OMP_WAIT_POLICY"] = "passive"
# What s3:// asks for in tests: never somebody's own credentials, and no minutes of waiting for a server that was killed.
os.environ |= {
    "AWS_ACCESS_KEY_ID": "tester",
    "AWS_SECRET_ACCESS_KEY": "a-secret-key-of-the-tests",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_MAX_ATTEMPTS": "2",
}
# Triton's kernels run in its interpreter; TRITON_INTERPRET=0 runs them on a GPU. Decided when triton is first imported.
os.environ.setdefault("TRITON_INTERPRET", "1")

# The same examples every time, and no test that fails because the machine is busy.
settings.register_profile(
    "batchpaged", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], database=None
)
settings.load_profile("batchpaged")


@pytest.fixture(scope="module", autouse=True)
def own_rotations() -> Iterator[None]:
    """An engine exchanges a function of its model's module, for the whole process. The next file begins with transformers' own:
    else its models would run in Triton's interpreter, at a hundredth of the speed."""
    yield
    for name, module in list(sys.modules.items()):
        function = vars(module).get("apply_rotary_pos_emb") if name.startswith("transformers.models.") else None
        if hasattr(function, "original"):
            module.apply_rotary_pos_emb = function.original
