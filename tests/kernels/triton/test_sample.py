"""Sampling: the same tokens as the reference, the right shares, and what may not matter does not."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from kernel_tensors import DEVICE, assert_close, far_apart, random, unwritten

from batchpaged.engine.sampler import filter_probabilities
from batchpaged.engine.sampling_params import SamplingParams
from batchpaged.kernels.triton.philox_reference import philox
from batchpaged.kernels.triton.sample import reference
from batchpaged.kernels.triton.sample.kernel import _gumbel
from batchpaged.kernels.triton.sample.launch import BLOCK, SamplingRows, sample

pytestmark = pytest.mark.filterwarnings("ignore:divide by zero")  # the interpreter's: log(0) of tokens left out

ALL = 1 << 30
PARAMS = [  # temperature, top_k, top_p, min_p
    (0.0, ALL, 1.0, 0.0),
    (1.0, ALL, 1.0, 0.0),
    (0.7, 1, 1.0, 0.0),
    (1.5, 7, 1.0, 0.0),
    (1.0, ALL, 0.5, 0.0),
    (2.0, ALL, 1e-6, 0.0),
    (1.0, ALL, 1.0, 0.3),
    (1.3, 40, 0.8, 0.05),
    (0.0, 3, 0.5, 0.5),
    (1e-4, 50, 0.9, 0.0),
    (5.0, 11, 0.97, 0.02),
    (0.4, ALL, 1.0, 0.0),
]


def rows_of(params: list[tuple[float, int, float, float]], seeds: list[int], positions: list[int]) -> SamplingRows:
    columns = torch.tensor(params, dtype=torch.float64, device=DEVICE).reshape(-1, 4).unbind(1)
    temperatures, top_ks, top_ps, min_ps = (column.contiguous() for column in columns)
    return SamplingRows(
        temperatures.float(),
        top_ks.int(),
        top_ps.float(),
        min_ps.float(),
        torch.tensor(np.array(seeds, dtype=np.uint64).view(np.int64), device=DEVICE),
        torch.tensor(positions, dtype=torch.int32, device=DEVICE),
    )


def alike(count: int, temperature: float = 1.0, top_k: int = ALL, top_p: float = 1.0, min_p: float = 0.0) -> SamplingRows:
    return rows_of([(temperature, top_k, top_p, min_p)] * count, list(range(count)), [5] * count)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("vocab_size", [1, 2, 97, BLOCK, BLOCK + 1])
def test_equals_the_reference(vocab_size: int, dtype: torch.dtype) -> None:
    logits = random(len(PARAMS), vocab_size, dtype=dtype, scale=3)
    seeds = [7, 2**64 - 1, 2**63, *range(2**33, 2**33 + len(PARAMS) - 3)]
    rows = rows_of(PARAMS, seeds, list(range(100, 100 + len(PARAMS))))
    assert sample(logits, rows).tolist() == reference.sample(logits, **vars(rows)).tolist()


@pytest.mark.parametrize("params", [{"top_k": 5}, {"top_p": 0.31}, {"temperature": 0.0}, {"top_k": 8, "top_p": 0.4}, {"min_p": 1.0}])
def test_of_equal_logits_the_lowest_ids_come_first(params: dict) -> None:
    """All tokens, or all but some, are equal: only ids tell which are kept."""
    logits = torch.zeros(6, 30, device=DEVICE)
    logits[:, ::2] = -0.0
    logits[3:, 3::4] = -1.0
    rows = alike(6, **params)
    assert sample(logits, rows).tolist() == reference.sample(logits, **vars(rows)).tolist()


@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"top_k": 2}])
def test_equal_logits_in_two_pieces_of_a_row(params: dict) -> None:
    """The lowest id comes first, whichever piece is read last; tokens of either piece have their own ids."""
    logits = torch.full((8, BLOCK + 40), -9.0, device=DEVICE)
    logits[:, [7, BLOCK + 7]] = 9.0
    rows = alike(8, **params)
    found = sample(logits, rows).tolist()
    assert found == reference.sample(logits, **vars(rows)).tolist()
    assert set(found) == ({7, BLOCK + 7} if "top_k" in params else {7})


@triton.jit
def _write_gumbel(output, seed, position, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(output + at, _gumbel(seed, position, at))


def test_noise_is_exact_where_it_decides() -> None:
    """Great noise comes of small numbers, whose logarithm is a series; 1 in 100 of these."""
    output = unwritten(1 << 14)
    _write_gumbel[(1,)](output, 12345, 7, SIZE=len(output))
    expected = reference.gumbel(torch.tensor([12345], device=DEVICE), torch.tensor([7], device=DEVICE), len(output))[0]
    assert_close("noise", output, expected, 1e-5, 5e-5)


def test_shares_are_those_of_the_softmax() -> None:
    """Chi-square over rows that differ in seed and position: a fair draw stays below 20.5 in 999 of 1,000 cases."""
    count, temperature = 40_000, 0.8
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0, 0.5, 2.0], device=DEVICE).expand(count, -1)
    rows = rows_of([(temperature, ALL, 1.0, 0.0)] * count, [i // 200 for i in range(count)], [i % 200 for i in range(count)])
    found = reference.sample(logits, **vars(rows))
    expected = (logits[0].double() / temperature).softmax(-1) * count
    assert ((torch.bincount(found, minlength=6) - expected) ** 2 / expected).sum() < 20.5
    some = slice(0, count, 400)
    assert sample(logits[some], SamplingRows(*(x[some].contiguous() for x in vars(rows).values()))).equal(found[some])


@pytest.mark.parametrize(("top_k", "top_p", "min_p"), [(None, 0.6, 0.0), (9, 1.0, 0.1), (4, 0.7, 0.0), (12, 0.9, 0.05)])
def test_leaves_what_the_cpu_sampler_leaves(top_k: int | None, top_p: float, min_p: float) -> None:
    """Every token that a CPU may draw is drawn, and no other."""
    logits, count = random(1, 40, scale=0.7), 4000
    probabilities, order = logits.double().softmax(-1).sort(dim=-1, descending=True)
    kept = filter_probabilities(probabilities, SamplingParams(temperature=1.0, top_k=top_k, top_p=top_p, min_p=min_p))
    drawn = reference.sample(logits.expand(count, -1), **vars(alike(count, 1.0, top_k or ALL, top_p, min_p)))
    assert set(drawn.tolist()) == set(order[kept > 0].tolist())


def test_does_not_depend_on_the_place_in_the_batch() -> None:
    logits = random(6, 300)
    params, seeds, positions = PARAMS[1:7], list(range(6)), [9] * 6
    together = sample(logits, rows_of(params, seeds, positions)).tolist()
    for i in range(6):
        assert sample(logits[i : i + 1], rows_of(params[i : i + 1], [i], [9])).tolist() == [together[i]]


@pytest.mark.parametrize("field", ["seeds", "positions"])
def test_seed_and_position_both_matter(field: str) -> None:
    logits = torch.zeros(32, 1000, device=DEVICE)
    same = {"seeds": [3] * 32, "positions": [4] * 32}
    assert len(set(sample(logits, rows_of([PARAMS[1]] * 32, **same)).tolist())) == 1
    differ = same | {field: list(range(32))}
    assert len(set(sample(logits, rows_of([PARAMS[1]] * 32, **differ)).tolist())) > 25


@pytest.mark.parametrize("params", [{}, {"temperature": 0.0}, {"top_k": 3, "top_p": 0.5}])
def test_nan_counts_as_minus_infinity_and_every_row_has_a_token(params: dict) -> None:
    logits = random(6, 50)
    logits[1, 7] = -torch.inf
    expected = sample(logits, alike(6, **params)).tolist()
    logits[0], logits[1, 7], logits[2], logits[3, 9] = torch.nan, torch.nan, -torch.inf, torch.inf
    found = sample(logits, alike(6, **params)).tolist()
    assert all(0 <= token < 50 for token in found)
    assert [found[1], *found[3:]] == [expected[1], 9, *expected[4:]]


def test_a_row_without_any_finite_logit_has_its_first_token() -> None:
    logits = torch.full((2, BLOCK + 40), -torch.inf, device=DEVICE)
    logits[1] = torch.nan
    assert sample(logits, alike(2)).tolist() == [0, 0]


def test_no_rows_and_rows_apart_in_memory() -> None:
    assert sample(random(0, 50), alike(0)).tolist() == []
    wide = random(4, 200)
    assert sample(wide[:, 20:70], alike(4)).tolist() == sample(wide[:, 20:70].contiguous(), alike(4)).tolist()


def test_rows_far_beyond_32_bits_of_numbers() -> None:
    logits = random(3, 64, dtype=torch.float16)
    assert sample(far_apart(logits), alike(3)).tolist() == sample(logits, alike(3)).tolist()


def test_refuses_what_it_cannot_take() -> None:
    with pytest.raises(ValueError, match="temperatures"):
        sample(random(3, 50), alike(2))


def test_philox_reference_is_philox() -> None:
    """A known answer of the authors' Random123: key and counter 0."""
    zero = torch.zeros(1, dtype=torch.int64)
    assert philox(zero, zero[None], zero[None]).item() == 0x6627E8D5
