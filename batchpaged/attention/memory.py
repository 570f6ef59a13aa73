"""Memory of a KV cache on a CPU."""

import contextlib
import mmap

import numpy as np
import torch


def zeros_on_first_use(num_bytes: int) -> torch.Tensor:
    """uint8 [num_bytes] of pages that the system hands out, zeroed, when they are first written.

    torch.zeros would write all of them at once. Large pages, where the system has them, save the table look-ups that
    reading blocks from all over the cache would cost, and most of the time for handing out.
    """
    # Private, where there is a choice: large pages are seldom given to shared memory.
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    memory = mmap.mmap(-1, max(num_bytes, 1), **private)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without large pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.from_numpy(np.frombuffer(memory, dtype=np.uint8, count=num_bytes))
