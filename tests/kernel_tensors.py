"""Tensors for kernel tests, on the GPU where kernels are compiled, else on the CPU, where the interpreter runs them."""

import math

import torch
from triton import knobs

DEVICE = "cpu" if knobs.runtime.interpret else "cuda"
DTYPES = (torch.float32, torch.float16)


def random(*shape: int, dtype: torch.dtype = torch.float32, scale: float = 1.0, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + 31 * len(shape) + sum(shape))
    return (torch.randn(shape, generator=generator) * scale).to(DEVICE, dtype)


def unwritten(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """NaN; what has no NaN is filled with 77."""
    return torch.full(shape, math.nan if dtype.is_floating_point else 77, device=DEVICE).to(dtype)


def far_apart(x: torch.Tensor) -> torch.Tensor:
    """A copy whose rows, three or more, are so far apart that the third begins 2**31 numbers behind the first.

    The system hands out only the pages that are touched.
    """
    stride, inner = 1 << 30, x[0].numel()
    memory = torch.empty((len(x) - 1) * stride + inner, dtype=x.dtype, device=x.device)
    apart = memory.as_strided(x.shape, (stride, *x[0].contiguous().stride()))
    return apart.copy_(x)


def assert_close(name: str, result: torch.Tensor, expected: torch.Tensor, rtol: float, atol: float | None = None) -> None:
    """NaN only where it is expected. `atol` is `rtol` unless given."""
    torch.testing.assert_close(
        result.float(), expected.float(), rtol=rtol, atol=rtol if atol is None else atol, equal_nan=True,
        msg=lambda message: f"{name}: {message}",
    )  # fmt: skip
