"""The same in torch operations."""

import torch

from batchpaged.kernels.triton.rope_store import reference


def rotate(
    query: torch.Tensor, key: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor, is_interleaved: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Shapes as in launch.py."""
    turned = (reference.rotate(x, cosine, sine, is_interleaved).to(x.dtype) for x in (query, key))
    return tuple(turned)
