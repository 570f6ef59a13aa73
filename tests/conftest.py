"""Settings of all tests."""

import os
import signal
import threading

from hypothesis import settings

# A shell that starts us in the background has Ctrl-C ignored, by us and by the runs that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

# One thread each, in this process and those it starts: tests share their machine. Before torch is imported, which many
# tests never do.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MKL_NUM_THREADS"] = "1"
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
settings.register_profile("batchpaged", deadline=None, derandomize=True)
settings.load_profile("batchpaged")
