"""Memory of a KV cache on a CPU."""

import mmap

import numpy as np
import torch


def zeros_on_first_use(num_bytes: int) -> torch.Tensor:
    """uint8 [num_bytes] of pages that the system hands out, zeroed, when they are first written.

    torch.zeros would write all of them at once. Large pages, where the system has them, save the table look-ups that
    reading blocks from all over the cache would cost, and most of the time for handing out.
    """
    memory = mmap.mmap(-1, max(num_bytes, 1))
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.from_numpy(np.frombuffer(memory, dtype=np.uint8, count=num_bytes))
