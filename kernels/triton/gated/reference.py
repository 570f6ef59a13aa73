"""The same in torch operations."""

import torch
from torch.nn import functional


def gated(gate: torch.Tensor, up: torch.Tensor, activation: str = "silu") -> torch.Tensor:
    """Shapes as in launch.py."""
    return (functional.silu(gate) if activation == "silu" else functional.gelu(gate, approximate="tanh")) * up
