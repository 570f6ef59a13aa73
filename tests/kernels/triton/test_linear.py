"""Linear layers: the reference's results, with the same bits in any batch."""

import pytest
import torch
from kernel_tensors import DEVICE, DTYPES, assert_close, far_apart, random

from batchpaged.kernels.triton.launching import Launch, record
from batchpaged.kernels.triton.linear import reference
from batchpaged.kernels.triton.linear.kernel import linear_kernel
from batchpaged.kernels.triton.linear.launch import BLOCK_M, GROUP, linear
from batchpaged.kernels.triton.targets import TARGETS, Target

TOLERANCE = {torch.float32: 2e-6, torch.float16: 1e-3}


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("rows", "depth", "columns"), [(0, 8, 5), (1, 1, 1), (3, 7, 130), (65, 64, 64), (130, 100, 3), (BLOCK_M * (GROUP + 3) + 1, 16, 70)]
)
def test_equals_the_reference(rows: int, depth: int, columns: int, dtype: torch.dtype, has_bias: bool) -> None:
    x, weight = random(rows, depth, dtype=dtype), random(columns, depth, dtype=dtype)
    bias = random(columns, dtype=dtype, scale=9) if has_bias else None
    found, expected = linear(x, weight, bias), reference.linear(x, weight, bias)
    assert found.dtype is dtype and found.shape == (rows, columns)
    assert_close("output", found, expected, TOLERANCE[dtype], TOLERANCE[dtype] * max(1.0, depth**0.5))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_has_the_same_bits_in_any_batch(dtype: torch.dtype) -> None:
    """At any place, beside any others; sums long enough that another order shows."""
    x, weight, bias = random(2 * BLOCK_M + 9, 1000, dtype=dtype), random(40, 1000, dtype=dtype), random(40, dtype=dtype)
    together = linear(x, weight, bias)
    for first, end in ((0, 1), (5, 12), (BLOCK_M - 1, BLOCK_M + 1), (60, len(x)), (len(x) - 1, len(x))):
        assert torch.equal(linear(x[first:end], weight, bias), together[first:end])
    assert torch.equal(linear(x.flip(0), weight, bias), together.flip(0))


@pytest.mark.parametrize("target", TARGETS.values(), ids=list(TARGETS))
def test_what_is_compiled_does_not_depend_on_the_number_of_rows(target: Target) -> None:
    def launched(rows: int) -> Launch:
        with record(target) as launches:
            linear(*(torch.empty(n, 96, dtype=torch.bfloat16, device="meta") for n in (rows, 200)))
        return launches[0]

    expected = launched(64)
    for rows in (1, 2, 16, 63, 65, 4096):
        assert launched(rows).options == expected.options
        is_different = [one != other for one, other in zip(launched(rows).args[4:], expected.args[4:], strict=True)]
        assert is_different == [True, *[False] * 4]
    kept_general = linear_kernel.kwargs if DEVICE == "cpu" else vars(linear_kernel)
    assert kept_general["do_not_specialize"] == ["num_rows"]


def test_one_row_says_nothing_of_another() -> None:
    x, weight = random(5, 64), random(8, 64)
    x[2] = torch.nan
    assert linear(x, weight).isnan().any(-1).tolist() == [False, False, True, False, False]


def test_inputs_may_lie_anywhere_in_memory() -> None:
    wide, weight = random(9, 101), random(8, 50)
    for x in (wide[:, 3:53], wide.t()[:50].t(), wide.flatten()[1 : 1 + 9 * 50].view(9, 50)):
        assert torch.equal(linear(x, weight), linear(x.clone().contiguous(), weight))


def test_rows_far_beyond_32_bits_of_numbers() -> None:
    x, weight, output = (far_apart(random(3, 16, dtype=torch.float16, seed=seed)) for seed in range(3))
    linear_kernel[(1,)](
        x, weight, None, output, 3, 3, x.stride(0), x.stride(0), x.stride(0),
        K=16, HAS_BIAS=False, PRECISION="ieee", BLOCK_M=16, BLOCK_N=16, BLOCK_K=16, GROUP=1,
    )  # fmt: skip
    assert_close("output", output[:, :3], reference.linear(x.contiguous(), weight.contiguous()), 1e-3)


def test_refuses_what_it_cannot_take() -> None:
    with pytest.raises(ValueError, match="inputs"):
        linear(random(2, 8), random(3, 9))
    with pytest.raises(ValueError, match="weights of"):
        linear(random(2, 8), random(3, 8, dtype=torch.float16))
    with pytest.raises(ValueError, match="whole rows"):
        linear(random(2, 8), random(8, 3).t())
    with pytest.raises(ValueError, match="bias"):
        linear(random(2, 8), random(3, 8), random(4))
