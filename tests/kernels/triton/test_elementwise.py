"""Norm and gated activation against their references."""

import pytest
import torch
from kernel_tensors import DTYPES, assert_close, far_apart, random

from batchpaged.kernels.triton.gated import reference as gated_reference
from batchpaged.kernels.triton.gated.launch import gated
from batchpaged.kernels.triton.rms_norm import reference as norm_reference
from batchpaged.kernels.triton.rms_norm.launch import rms_norm

pytestmark = pytest.mark.filterwarnings("ignore:overflow")  # the interpreter's: exp of what is far below 0

SHAPES = [(0, 64), (1, 1), (3, 7), (1, 2049), (37, 80), (5, 4096)]


def tolerance(dtype: torch.dtype) -> float:
    return 2e-6 if dtype is torch.float32 else 2e-3


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("adds", "has_unit_offset"), [(False, False), (True, False), (True, True)])
def test_rms_norm(shape: tuple[int, int], dtype: torch.dtype, adds: bool, has_unit_offset: bool) -> None:
    x, weight = random(*shape, dtype=dtype, scale=3), random(shape[1], dtype=dtype)
    residual = random(*shape, dtype=dtype, seed=1) if adds else None
    found = rms_norm(x, weight, 1e-3, residual, has_unit_offset)
    expected = norm_reference.rms_norm(x, weight, 1e-3, residual, has_unit_offset)
    assert_close("output", found[0], expected[0], tolerance(dtype))
    assert torch.equal(found[1], expected[1]) and found[0].dtype is dtype


def test_rms_norm_of_rows_apart_and_of_zeros() -> None:
    x, residual = random(5, 200)[:, :72], random(5, 100)[:, 10:82]
    x[1], residual[1] = 0, 0
    weight = random(72)
    found, expected = rms_norm(x, weight, 1e-6, residual), norm_reference.rms_norm(x, weight, 1e-6, residual)
    assert_close("output", found[0], expected[0], 2e-6)
    assert not found[0][1].any()


def test_rms_norm_of_one_row_says_nothing_of_another() -> None:
    x, weight = random(5, 64), random(64)
    x[2] = torch.nan
    found, _ = rms_norm(x, weight, 1e-6)
    assert found.isnan().any(-1).tolist() == [False, False, True, False, False]


def test_rms_norm_refuses_what_it_cannot_take() -> None:
    with pytest.raises(ValueError, match="weights"):
        rms_norm(random(2, 8), random(7), 1e-6)
    with pytest.raises(ValueError, match="residual"):
        rms_norm(random(2, 8), random(8), 1e-6, random(2, 8, dtype=torch.float16))


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_gated(shape: tuple[int, int], dtype: torch.dtype, activation: str) -> None:
    gate, up = random(*shape, dtype=dtype, scale=4), random(*shape, dtype=dtype, seed=1)
    assert_close("output", gated(gate, up, activation), gated_reference.gated(gate, up, activation), tolerance(dtype))


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gated_of_halves_of_one_product_and_of_extremes(activation: str) -> None:
    gate, up = random(3, 100).chunk(2, dim=-1)
    gate[0, :6] = torch.tensor([-1e30, -200.0, -0.0, 0.0, 200.0, 1e5])
    assert_close("output", gated(gate, up, activation), gated_reference.gated(gate, up, activation), 2e-6)


def test_gated_of_rows_at_two_distances() -> None:
    gate, up = random(3, 100)[:, :40], random(3, 60)[:, 10:50]
    assert_close("output", gated(gate, up), gated_reference.gated(gate, up), 2e-6)


def test_gated_refuses_what_it_cannot_take() -> None:
    with pytest.raises(ValueError, match="activation"):
        gated(random(2, 8), random(2, 8), "relu")
    with pytest.raises(ValueError, match="gate"):
        gated(random(2, 8), random(2, 9))


def test_rows_far_beyond_32_bits_of_numbers() -> None:
    x, other, weight = random(3, 64, dtype=torch.float16), random(3, 64, dtype=torch.float16, seed=1), random(64, dtype=torch.float16)
    assert torch.equal(gated(far_apart(x), far_apart(other)), gated(x, other))
    assert torch.equal(rms_norm(far_apart(x), weight, 1e-6, far_apart(other))[0], rms_norm(x, weight, 1e-6, other)[0])
