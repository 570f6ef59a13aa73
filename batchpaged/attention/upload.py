"""From the host to where a step runs and back, without waiting for what runs there."""

from collections.abc import Sequence

import numpy as np
import torch


def upload(values: Sequence[int] | np.ndarray, device: torch.device | str) -> torch.Tensor:
    """`values` on `device`, in their shape; int64 where they are no array.

    A GPU copies them from pinned memory in the order of its stream; torch keeps that memory until the copy is made.
    """
    array = values if isinstance(values, np.ndarray) else np.array(values, dtype=np.int64)
    tensor = torch.from_numpy(array)
    return tensor if torch.device(device).type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def download(tensor: torch.Tensor) -> torch.Tensor:
    """A GPU's tensor in pinned memory: its numbers are there once the stream has come to this point."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)
