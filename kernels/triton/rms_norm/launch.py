"""Checks, grid and configuration of the root mean square norm."""

import torch
import triton

from batchpaged.kernels.triton.launching import Example, check, launch, without_memory
from batchpaged.kernels.triton.rms_norm.kernel import rms_norm_kernel

MAX_DIM = 32_768
VALUES_PER_PROGRAM = 2048  # of short rows, such as heads


def rms_norm(
    x: torch.Tensor,  # [num_rows, dim], last dimension contiguous
    weight: torch.Tensor,  # [dim]
    epsilon: float,
    residual: torch.Tensor | None = None,  # [num_rows, dim], of the same type
    has_unit_offset: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """-> (x + residual) / rms * weight, and x + residual, both [num_rows, dim] in x's type; without residual x itself.

    The mean is taken in float32. `has_unit_offset`: Gemma's norm, which multiplies with 1 + weight and rounds once, where
    Llama's rounds before it multiplies. Raises ValueError.
    """
    check(x.ndim == 2 and x.stride(1) == 1 and x.shape[1] <= MAX_DIM, f"rows of at most {MAX_DIM} values, not {x.shape}")
    check(weight.shape == x.shape[1:] and weight.is_contiguous(), f"{tuple(weight.shape)} weights for {tuple(x.shape)}")
    num_rows, dim = x.shape
    output = torch.empty((num_rows, dim), dtype=x.dtype, device=x.device)
    total = x
    if residual is not None:
        is_alike = residual.shape == x.shape and residual.dtype is x.dtype and residual.stride(1) == 1
        check(is_alike, f"a residual {tuple(residual.shape)} of {residual.dtype} for {tuple(x.shape)} of {x.dtype}")
        total = torch.empty_like(output)
    padded = triton.next_power_of_2(dim)
    rows = max(1, VALUES_PER_PROGRAM // padded)
    launch(
        rms_norm_kernel, (triton.cdiv(num_rows, rows),),
        x, residual, weight, output, total, num_rows, x.stride(0), 0 if residual is None else residual.stride(0), epsilon,
        DIM=dim, PADDED_DIM=padded, ROWS=rows, ADDS=residual is not None, HAS_UNIT_OFFSET=has_unit_offset,
        num_warps=min(16, max(4, padded // 1024)),
    )  # fmt: skip
    return output, total


def _example(dim: int, adds: bool, dtype: torch.dtype) -> None:
    x = without_memory(512, dim, dtype=dtype)
    rms_norm(x, without_memory(dim, dtype=dtype), 1e-5, x if adds else None)


EXAMPLES = (
    Example("4096 with residual", lambda dtype: _example(4096, True, dtype)),
    Example("16384 with residual", lambda dtype: _example(16_384, True, dtype)),
    Example("heads of 128", lambda dtype: _example(128, False, dtype)),
)
