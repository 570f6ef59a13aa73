"""Element-wise kernels against torch, over odd shapes and extreme values."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from batchpaged.kernels.cpu.elementwise import argmax, rms_norm, rotate, silu_multiply

SHAPES = [(1, 1), (1, 8), (3, 7), (5, 24), (2, 1025), (4, 96)]


def random(*shape: int, scale: float = 1.0) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape, dtype=np.float32) * np.float32(scale)


def unwritten(*shape: int) -> np.ndarray:
    return np.full(shape, np.nan, dtype=np.float32)


def assert_close(result: np.ndarray, expected: torch.Tensor, rtol: float = 3e-6) -> None:
    torch.testing.assert_close(torch.from_numpy(result), expected, rtol=rtol, atol=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
def test_silu_multiply(shape: tuple[int, int], scale: float) -> None:
    rows, dim = shape
    gate_up, output = random(rows, 2 * dim, scale=scale), unwritten(rows, dim)
    silu_multiply(gate_up, output)
    gate, up = torch.from_numpy(gate_up).chunk(2, dim=-1)
    assert_close(output, torch.nn.functional.silu(gate) * up)


def test_silu_of_the_greatest_and_the_least() -> None:
    gate = np.array([[-3e38, -1000.0, -89.0, -88.0, -87.0, -1e-30, 0.0, 1e-30, 87.0, 88.5, 1000.0, 3e38]], dtype=np.float32)
    output = unwritten(*gate.shape)
    silu_multiply(np.concatenate([gate, np.ones_like(gate)], axis=1), output)
    expected = torch.nn.functional.silu(torch.from_numpy(gate))
    torch.testing.assert_close(torch.from_numpy(output[:, 1:]), expected[:, 1:], rtol=3e-6, atol=1e-30)
    assert abs(output[0, 0]) <= 3.0  # 3e38 / exp(88): exp ends before it overflows


def test_silu_keeps_nan_in_its_place() -> None:
    gate_up, output = random(3, 16), unwritten(3, 8)
    gate_up[1, 2] = np.nan
    silu_multiply(gate_up, output)
    assert np.argwhere(np.isnan(output)).tolist() == [[1, 2]]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_rms_norm(shape: tuple[int, int], scale: float) -> None:
    x, weight, output = random(*shape, scale=scale), random(shape[1]), unwritten(*shape)
    rms_norm(x, weight, np.float32(1e-5), output)
    assert_close(output, torch.nn.functional.rms_norm(torch.from_numpy(x), shape[1:], torch.from_numpy(weight), 1e-5))


def test_rms_norm_of_zeros_is_zero() -> None:
    output = unwritten(2, 24)
    rms_norm(np.zeros((2, 24), np.float32), random(24), np.float32(1e-6), output)
    assert not output.any()


@pytest.mark.parametrize(("tokens", "heads", "dim"), [(1, 1, 2), (3, 5, 6), (7, 2, 24), (4, 3, 64)])
def test_rotate(tokens: int, heads: int, dim: int) -> None:
    x, cosine, sine = random(tokens, heads, dim), random(tokens, dim), random(tokens + 1, dim)[1:]
    output = unwritten(tokens, heads, dim)
    rotate(x, cosine, sine, output)
    low, high = x[..., : dim // 2], x[..., dim // 2 :]
    expected = x * cosine[:, None] + np.concatenate([-high, low], axis=-1) * sine[:, None]
    assert_close(output, torch.from_numpy(expected))


def first_best(x: np.ndarray) -> list[int]:
    best = np.full(len(x), -1, dtype=np.int64)
    argmax(x, best)
    return best.tolist()


@given(arrays(np.float32, st.tuples(st.integers(1, 4), st.integers(1, 40)), elements=st.floats(-2, 2, width=16)))
def test_argmax_is_the_first_of_the_greatest(x: np.ndarray) -> None:
    assert first_best(x) == x.argmax(-1).tolist()


@pytest.mark.parametrize("dim", [1, 2, 1023, 1024, 1025, 2048, 5000])
def test_argmax_across_its_runs(dim: int) -> None:
    x = random(6, dim)
    x[1, [0, dim // 2, dim - 1]] = 50  # ties, in one run and in several
    x[2, dim - 1] = 50
    x[3], x[4] = -np.inf, 7
    x[5, dim // 2] = np.inf
    assert first_best(x) == x.argmax(-1).tolist()


def test_argmax_of_nan_is_some_token_and_other_rows_have_theirs() -> None:
    x = random(5, 1500)
    x[0], x[1, 0], x[2, 1400] = np.nan, np.nan, np.nan
    best = first_best(x)
    assert all(0 <= token < 1500 for token in best)
    assert best[3:] == x[3:].argmax(-1).tolist()
