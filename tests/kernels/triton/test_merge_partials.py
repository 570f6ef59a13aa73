"""Partial results merged by log-sum-exp, in any number, empty ones among them."""

import pytest
import torch
from kernel_tensors import DEVICE, DTYPES, assert_close, random, unwritten

from batchpaged.kernels.triton.merge_partials import reference
from batchpaged.kernels.triton.merge_partials.launch import merge_partials

NUM_TOKENS = 6


def merged_by(function, lse: torch.Tensor, counts: list[int], dim: int, sinks, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Outputs of the first tokens in reverse order; the partial output of empty results is NaN."""
    parts = random(*lse.shape, dim).masked_fill(lse[..., None] == -torch.inf, torch.nan)
    tokens = torch.arange(len(counts), device=DEVICE, dtype=torch.int32).flip(0)
    starts = torch.tensor([0, *counts], device=DEVICE).cumsum(0).to(torch.int32)
    output = unwritten(NUM_TOKENS, lse.shape[1], dim, dtype=dtype)
    function(parts, lse, tokens, starts, sinks, output)
    return output


@pytest.mark.parametrize("has_sinks", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("counts", "num_heads", "dim"), [([], 2, 64), ([1], 1, 64), ([2, 1, 3], 3, 80), ([16, 17], 2, 96), ([0, 40, 5], 1, 256)]
)
def test_equals_the_reference(counts, num_heads, dim, dtype, has_sinks) -> None:
    lse = random(sum(counts), num_heads, scale=3)
    sinks = random(num_heads, dtype=dtype) if has_sinks else None
    found, expected = (merged_by(f, lse, counts, dim, sinks, dtype) for f in (merge_partials, reference.merge_partials))
    assert_close("output", found, expected, {torch.float32: 1e-5, torch.float16: 2e-3}[dtype])
    assert found[len(counts) :].isnan().all()


@pytest.mark.parametrize("has_sinks", [False, True])
def test_empty_partial_results_change_nothing(has_sinks) -> None:
    lse = random(20, 2)
    lse[torch.tensor([0, 4, 5, 6, 7, 12, 19])] = -torch.inf  # first, last, the whole second token
    sinks = random(2) if has_sinks else None
    found, expected = (merged_by(f, lse, [4, 4, 12], 64, sinks) for f in (merge_partials, reference.merge_partials))
    assert_close("output", found, expected, 1e-5)
    assert (found[1] == 0).all()


def test_partial_results_of_any_magnitude() -> None:
    """exp(lse) of most would be no number."""
    lse = torch.tensor([-3e4, -2e4, 5e3, 4.999e3, 2e4, -1e30])[:, None].to(DEVICE)
    found, expected = (merged_by(f, lse, [2, 2, 2], 64, None) for f in (merge_partials, reference.merge_partials))
    assert_close("output", found, expected, 1e-5)


def test_rows_far_beyond_32_bits_of_numbers() -> None:
    """The last partial result and the last token lie there; the system hands out only the pages that are touched."""
    num_rows = (1 << 23) + 1
    parts, output = (torch.empty(num_rows, 1, 256, dtype=dtype, device=DEVICE) for dtype in (torch.float32, torch.float16))
    parts[-1] = random(1, 256)
    lse = torch.zeros(num_rows, 1, device=DEVICE)
    token, starts = (torch.tensor(x, dtype=torch.int32, device=DEVICE) for x in ([num_rows - 1], [num_rows - 1, num_rows]))
    merge_partials(parts, lse, token, starts, None, output)
    assert_close("output", output[-1], parts[-1], 1e-3)


def test_refuses_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="starts"):
        merge_partials(random(2, 2, 64), random(2, 2), torch.zeros(1), torch.zeros(3), None, random(1, 2, 64))
    with pytest.raises(ValueError, match="partial results"):
        merge_partials(random(2, 3, 64), random(2, 3), torch.zeros(1), torch.zeros(2), None, random(1, 2, 64))
