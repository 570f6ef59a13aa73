"""Memory of a KV cache on a CPU."""

import mmap

import numpy as np
import torch


def zeros_on_first_use(num_bytes: int) -> torch.Tensor:
    """uint8 [num_bytes] of pages that the system hands out, zeroed, when they are first written.

    torch.zeros would write all of them at once. numpy.zeros asks for large pages, which are slow to be handed out: with
    them, prefill took 15% longer on a virtual machine (docs/kernels.md).
    """
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    memory = mmap.mmap(-1, max(num_bytes, 1), **private)
    return torch.from_numpy(np.frombuffer(memory, dtype=np.uint8, count=num_bytes))
