"""One command for a machine with a GPU: are the kernels right, and how far from the card's limits is the engine?

Needs torch, triton and transformers, and nothing that reads data sets. Weights are random, so nothing is downloaded.
"""

from collections.abc import Callable
from pathlib import Path

from batchpaged.errors import RefusedError


def run_gpu_check(json_path: Path, say: Callable[[str], None]) -> bool:
    """-> whether all kernels are right. In Triton's interpreter tiny sizes run on the CPU. Raises RefusedError."""
    import torch
    from triton import knobs

    from batchpaged.gpu_check.check import gpu_check
    from batchpaged.gpu_check.sizes import FULL, TINY

    if knobs.runtime.interpret:
        return gpu_check(TINY, "cpu", json_path, say)
    if not torch.cuda.is_available():
        raise RefusedError("--gpu-check needs a GPU, and torch sees none; TRITON_INTERPRET=1 tries the check itself on a CPU")
    return gpu_check(FULL, "cuda", json_path, say)
