"""Settings of all tests."""

import os

from hypothesis import settings

# One thread each, in this process and those it starts: tests share their machine. Before torch is imported, which many
# tests never do.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MKL_NUM_THREADS"] = "1"
# Triton's kernels run in its interpreter; TRITON_INTERPRET=0 runs them on a GPU. Decided when triton is first imported.
os.environ.setdefault("TRITON_INTERPRET", "1")

# The same examples every time, and no test that fails because the machine is busy.
settings.register_profile("batchpaged", deadline=None, derandomize=True)
settings.load_profile("batchpaged")
