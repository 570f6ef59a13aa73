"""One GPU for each worker process of a machine, whoever started them."""

import os
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # Windows: workers take GPUs by their number alone
    fcntl = None


class GpuClaims:
    """The GPU that this process has claimed: the same one, by file lock, until the process ends."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._index: int | None = None
        self._lock: IO[bytes] | None = None  # held while open

    def claim(self, identities: Sequence[str], first: int) -> int:
        """Which of these GPUs to use: the first that no other process has claimed, from number `first` on, else that one.

        `identities` name GPUs, not numbers: each process may see them in an order of its own (CUDA_VISIBLE_DEVICES).
        """
        if self._index is None:
            order = [(first + i) % len(identities) for i in range(len(identities))]
            self._index = next((index for index in order if self._try(identities[index])), order[0])
        return self._index

    def _try(self, identity: str) -> bool:
        if fcntl is None:
            return True
        self._folder.mkdir(exist_ok=True)
        lock = open(self._folder / identity, "wb")  # noqa: SIM115 - kept open, or closed here
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            return False
        self._lock = lock
        return True


@cache
def _of_this_process() -> GpuClaims:
    owner = os.getuid() if hasattr(os, "getuid") else ""
    return GpuClaims(Path(tempfile.gettempdir()) / f"batchpaged-gpus-{owner}")


def claim_gpu(num_gpus: int, first: int) -> int:
    """Of those that torch sees here. `first`: the number of this worker, if workers were numbered for this machine."""
    import torch

    properties = [torch.cuda.get_device_properties(index) for index in range(num_gpus)]
    identities = [str(getattr(gpu, "uuid", index)) for index, gpu in enumerate(properties)]
    return _of_this_process().claim(identities, first)
