"""Products whose every sum has one order."""

import numpy as np
import pytest

from batchpaged.kernels.cpu.product import COLUMNS, multiply_rows, pack


def product(x: np.ndarray, weight: np.ndarray, first: float = 0.0) -> np.ndarray:
    panels = pack(weight)
    output = np.full((len(x), len(panels) * COLUMNS), first, np.float32)
    multiply_rows(x, panels, output)
    return output


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize("num_rows", [0, 1, 3, 4, 5, 300])
@pytest.mark.parametrize(("num_columns", "depth"), [(1, 1), (64, 128), (65, 129), (200, 300)])
def test_products(num_rows: int, num_columns: int, depth: int) -> None:
    x, weight = random(num_rows, depth), random(num_columns, depth)
    found = product(x, weight, first=2.0)
    expected = x.astype(np.float64) @ weight.T.astype(np.float64) + 2
    np.testing.assert_allclose(found[:, :num_columns], expected, rtol=1e-5, atol=1e-4)
    assert (found[:, num_columns:] == 2).all()


@pytest.mark.parametrize("place", [0, 1, 2, 3, 4, 255, 256, 299])
def test_a_row_has_the_same_bits_at_any_place(place: int) -> None:
    x, weight = random(300, 700), random(70, 700)
    assert (product(x, weight)[place] == product(x[place : place + 1], weight)[0]).all()


def test_sums_go_from_first_to_last() -> None:
    """1 + 2**30 - 2**30 is 0 in float32 from the left, and 1 in any order that adds the great ones first."""
    x, weight = np.ones((1, 3), np.float32), np.array([[1, 2**30, -(2**30)]], np.float32)
    assert product(x, weight)[0, 0] == 0


def test_one_row_that_is_not_finite_leaves_the_others_alone() -> None:
    x, weight = random(5, 20), random(10, 20)
    expected = product(x, weight)
    x[4] = np.inf
    assert (product(x, weight)[:4] == expected[:4]).all()
