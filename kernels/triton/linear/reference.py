"""The same in torch operations."""

import torch
from torch.nn import functional


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Shapes as in launch.py; in float32, rounded once."""
    wide = functional.linear(x.float(), weight.float(), None if bias is None else bias.float())
    return wide.to(x.dtype)
