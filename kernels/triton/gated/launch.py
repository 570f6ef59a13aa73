"""Checks, grid and configuration of activation and product in a gated MLP."""

from typing import Literal

import torch
import triton

from batchpaged.kernels.triton.gated.kernel import gated_kernel
from batchpaged.kernels.triton.launching import Example, check, launch, without_memory

VALUES_PER_PROGRAM = 1024


def gated(
    gate: torch.Tensor,  # [num_rows, dim], last dimension contiguous; may be half of one product
    up: torch.Tensor,  # [num_rows, dim], likewise, of the same type
    activation: Literal["silu", "gelu_tanh"] = "silu",
) -> torch.Tensor:
    """-> activation(gate) * up [num_rows, dim], in their type. Raises ValueError."""
    check(gate.shape == up.shape and gate.ndim == 2 and gate.dtype is up.dtype, f"gate {gate.shape} and up {up.shape}")
    check(gate.stride(1) == up.stride(1) == 1, "gate and up with a contiguous last dimension")
    check(activation in ("silu", "gelu_tanh"), f"no activation {activation!r}")
    num_rows, dim = gate.shape
    output = torch.empty((num_rows, dim), dtype=gate.dtype, device=gate.device)
    launch(
        gated_kernel, (num_rows, triton.cdiv(dim, VALUES_PER_PROGRAM)),
        gate, up, output, gate.stride(0), up.stride(0), dim,
        IS_GELU=activation == "gelu_tanh", BLOCK=VALUES_PER_PROGRAM, num_warps=4,
    )  # fmt: skip
    return output


def _example(activation: Literal["silu", "gelu_tanh"], dtype: torch.dtype) -> None:
    gate, up = without_memory(512, 2 * 14_336, dtype=dtype).chunk(2, dim=-1)
    gated(gate, up, activation)


EXAMPLES = (
    Example("silu, 14336", lambda dtype: _example("silu", dtype)),
    Example("gelu_tanh, 14336", lambda dtype: _example("gelu_tanh", dtype)),
)
