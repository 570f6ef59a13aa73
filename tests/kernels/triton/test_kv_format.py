"""Numbers in 8 bits: every value that a format has, and what lies between two."""

import torch
import triton
import triton.language as tl
from kernel_tensors import DEVICE

from batchpaged.kernels.triton.kv_format import float_to_fp8, fp8_to_float16


@triton.jit
def _to_fp8(x, output, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(output + at, float_to_fp8(tl.load(x + at)))


@triton.jit
def _from_fp8(x, output, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(output + at, fp8_to_float16(tl.load(x + at)))


def every_fp8() -> torch.Tensor:
    """[254] bytes of all numbers; the two NaN are left out."""
    return torch.tensor([byte for byte in range(256) if byte & 0x7F != 0x7F], dtype=torch.uint8, device=DEVICE)


def test_every_fp8_number_is_read_exactly() -> None:
    stored = torch.zeros(256, dtype=torch.uint8, device=DEVICE)
    stored[:254] = every_fp8()
    output = torch.full((256,), torch.nan, dtype=torch.float16, device=DEVICE)
    _from_fp8[(1,)](stored, output, SIZE=256)
    assert torch.equal(output.float(), stored.view(torch.float8_e4m3fn).float())


def test_rounds_to_the_nearest_fp8_and_ties_to_even() -> None:
    numbers = every_fp8().view(torch.float8_e4m3fn).float().sort().values
    middles = (numbers[1:] + numbers[:-1]) / 2
    near = torch.cat([middles, middles * (1 + 1e-6), middles * (1 - 1e-6)])
    x = torch.zeros(1024, device=DEVICE)
    x[: len(numbers)], x[len(numbers) : len(numbers) + len(near)] = numbers, near.clamp(-448, 448)
    output = torch.full((1024,), 77, dtype=torch.uint8, device=DEVICE)
    _to_fp8[(1,)](x, output, SIZE=1024)
    assert torch.equal(output.view(torch.float8_e4m3fn).float(), x.to(torch.float8_e4m3fn).float())
