"""Checks, grid and configuration of linear layers that do not depend on the batch."""

import torch
import triton

from batchpaged.kernels.triton.launching import Example, check, launch, target_of, without_memory
from batchpaged.kernels.triton.linear.kernel import linear_kernel

BLOCK_M = 64  # the fewest rows that a matrix instruction of four warps takes; more would be idle in a decode step
GROUP = 16
MANY_COLUMNS = 8192  # from which on wide tiles leave programs enough for all processors, in a decode step too
ALIGNMENT = 16  # bytes: what the compiler may assume of an address must not depend on the rows before


def linear(
    x: torch.Tensor,  # [num_rows, num_inputs], of the weight's type
    weight: torch.Tensor,  # [num_outputs, num_inputs], last dimension contiguous
    bias: torch.Tensor | None = None,  # [num_outputs]
) -> torch.Tensor:
    """-> x @ weight.T + bias [num_rows, num_outputs], summed in float32 and rounded once. Raises ValueError.

    A row's result has the same bits in any batch: tiles depend on the weight alone, and each sum goes through the inputs from first
    to last.
    """
    is_matched = x.ndim == weight.ndim == 2 and x.shape[1] == weight.shape[1]
    check(is_matched, f"inputs {tuple(x.shape)} for weights {tuple(weight.shape)}")
    check(x.dtype is weight.dtype and weight.stride(1) == 1, f"weights of {weight.dtype} in whole rows for {x.dtype}")
    check(bias is None or bias.shape == weight.shape[:1] and bias.is_contiguous(), "a bias for each output")
    (num_rows, depth), num_columns = x.shape, weight.shape[0]
    x = x.contiguous()
    if x.data_ptr() % ALIGNMENT:
        x = x.clone()
    output = torch.empty((num_rows, num_columns), dtype=x.dtype, device=x.device)
    is_amd, is_short = target_of(x).backend == "hip", x.element_size() < 4
    block_n = 128 if num_columns >= MANY_COLUMNS else 64
    launch(
        linear_kernel, (triton.cdiv(num_rows, BLOCK_M) * triton.cdiv(num_columns, block_n),),
        x, weight, bias, output, num_rows, num_columns, x.stride(0), weight.stride(0), output.stride(0),
        K=depth, HAS_BIAS=bias is not None, PRECISION="ieee" if is_amd else "tf32x3",
        BLOCK_M=BLOCK_M, BLOCK_N=block_n, BLOCK_K=64 if is_short else 32, GROUP=GROUP,
        num_warps=4, num_stages=2 if is_amd else 4 if is_short else 3,
    )  # fmt: skip
    return output


def _example(num_columns: int, depth: int, dtype: torch.dtype, has_bias: bool = False) -> None:
    bias = without_memory(num_columns, dtype=dtype) if has_bias else None
    linear(without_memory(256, depth, dtype=dtype), without_memory(num_columns, depth, dtype=dtype), bias)


EXAMPLES = (
    Example("4096 to 4096", lambda dtype: _example(4096, 4096, dtype)),
    Example("4096 to 28672", lambda dtype: _example(28_672, 4096, dtype)),
    Example("576 to 1000, bias", lambda dtype: _example(1000, 576, dtype, has_bias=True)),
    Example("100 to 300", lambda dtype: _example(300, 100, dtype)),
    Example("4096 to 4096, float32", lambda dtype: _example(4096, 4096, torch.float32)),
)
