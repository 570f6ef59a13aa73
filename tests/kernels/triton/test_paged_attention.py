"""Tiles of every kind: prefill, decode split over the context, shared runs; slots of the cache that no context uses hold NaN."""

from dataclasses import dataclass, field

import pytest
import torch
from attention.steps import prefix_step
from kernel_tensors import DEVICE, DTYPES, assert_close, far_apart, random, unwritten

from batchpaged.attention.plan import plan_attention
from batchpaged.attention.sharing import ALWAYS
from batchpaged.attention.tiles import TilePlan, plan_tiles
from batchpaged.engine.step import StepPlan
from batchpaged.kernels.triton.kv_reference import quantise
from batchpaged.kernels.triton.launching import record
from batchpaged.kernels.triton.paged_attention import reference
from batchpaged.kernels.triton.paged_attention.arguments import PagedCache, Results, Runs, Scoring
from batchpaged.kernels.triton.paged_attention.config import choose_config
from batchpaged.kernels.triton.paged_attention.launch import attend_tiles
from batchpaged.kernels.triton.paged_attention.tiling import Tiling
from batchpaged.kernels.triton.targets import TARGETS

TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3}


@dataclass(frozen=True)
class Case:
    """Sequences as (shared runs, own blocks, query length, slots left free in the last block); see prefix_step."""

    sequences: tuple[tuple[tuple[int, ...], int, int, int], ...]
    heads: tuple[int, int] = (2, 2)  # K/V heads, query heads of each
    dims: tuple[int, int] = (64, 64)
    block_size: int = 16
    tiling: Tiling = Tiling(split_keys=64)
    run_blocks: int = 3  # of a shared run
    scoring: dict = field(default_factory=dict)


CASES = {
    "no tokens": Case(()),
    "one token": Case((((), 1, 1, 15),)),
    "prefill": Case((((), 5, 73, 7),), heads=(1, 3)),
    "prefill after a cached prefix, keys that all see": Case((((), 20, 17, 3),), heads=(2, 3), dims=(80, 80)),
    "all but one key of a pass seen by all": Case((((), 5, 18, 0),), heads=(1, 2)),
    "prefill of several lengths": Case((((), 1, 1, 9), ((), 3, 19, 1), ((), 2, 31, 0)), block_size=8, dims=(96, 64)),
    "decode, split": Case((((), 1, 1, 31), ((), 3, 1, 30), ((), 6, 1, 0)), heads=(2, 4), dims=(128, 128), block_size=32),
    "split within a block": Case((((), 2, 1, 3),), block_size=128, heads=(1, 2), tiling=Tiling(split_keys=40)),
    "one K/V head": Case((((), 4, 1, 2), ((), 2, 3, 1)), heads=(1, 20), block_size=8),
    "keys wider than values": Case((((), 2, 1, 2), ((), 2, 9, 1)), heads=(2, 1), dims=(192, 128)),
    "large heads": Case((((), 9, 4, 2),), heads=(1, 2), dims=(256, 256)),
    "window shorter than a block": Case((((), 2, 1, 20), ((), 2, 9, 5)), block_size=64, scoring={"sliding_window": 3}),
    "window": Case((((), 12, 1, 3), ((), 4, 40, 5)), scoring={"sliding_window": 21}),
    "window and splits": Case((((), 12, 1, 3),), tiling=Tiling(split_keys=32), scoring={"sliding_window": 70}),
    "softcap": Case((((), 3, 1, 3), ((), 10, 9, 5)), scoring={"softcap": 2.0}),
    "sinks": Case((((), 6, 1, 3), ((), 2, 9, 5)), scoring={"sinks": True}),
    "two levels": Case((((0,), 1, 1, 3), ((0,), 2, 1, 0), ((), 1, 1, 1)), heads=(2, 3)),
    "three levels": Case(
        (((0, 1, 2), 1, 1, 3), ((0, 1, 2), 1, 3, 0), ((0, 1), 1, 1, 1), ((0, 1), 1, 1, 1), ((0, 3), 1, 1, 4), ((0, 3), 1, 2, 5)),
        heads=(1, 4),
        block_size=8,
    ),
    "everything": Case(
        (((0, 1), 1, 1, 3), ((0, 1), 1, 5, 0), ((0,), 9, 1, 1)),
        scoring={"sliding_window": 75, "softcap": 3.0, "sinks": True},
    ),
    "all tiles split alike": Case(
        (((), 5, 1, 3), ((), 9, 30, 5)),
        tiling=Tiling(tile_rows=(64,), split_keys=64, splits_every_tile=True, key_alignment=32),
        scoring={"sliding_window": 90},
    ),
}  # fmt: skip


class Prepared:
    """A case's tensors; only slots that belong to a context hold numbers."""

    def __init__(self, case: Case, dtype: torch.dtype, cache_dtype: torch.dtype | None = None) -> None:
        step, num_blocks = prefix_step(case.sequences, case.block_size, case.run_blocks)
        kv_heads, repeats = case.heads
        items = plan_attention(step.sequences, case.block_size, ALWAYS) if step.sequences else []
        self.plan = plan_tiles(items, repeats, case.scoring.get("sliding_window"), case.tiling)
        self.runs = Runs(*map(on_device, (self.plan.blocks, self.plan.tokens, self.plan.positions, self.plan.partials)))
        slots = used_slots(step, num_blocks, case.block_size)
        keys, values = (cache(slots, kv_heads, dim, cache_dtype or dtype, seed) for seed, dim in enumerate(case.dims))
        self.cache = PagedCache(keys[0], values[0], *keys[1:], *values[1:])
        self.query = random(kv_heads * repeats, step.num_tokens, case.dims[0], dtype=dtype).transpose(0, 1)  # as models give it
        sinks = {"sinks": random(kv_heads * repeats, scale=6)} if "sinks" in case.scoring else {}
        self.scoring = Scoring(case.dims[0] ** -0.5, **(case.scoring | sinks))

    def attend(self, function) -> Results:
        num_tokens, num_heads, _ = self.query.shape
        value_dim, num_partials = self.cache.values.shape[3], self.plan.num_partials
        results = Results(
            unwritten(num_tokens, num_heads, value_dim, dtype=self.query.dtype),
            unwritten(num_partials, num_heads, value_dim),
            unwritten(num_partials, num_heads),
        )
        for rows, tiles in self.plan.tiles.items():
            function(self.query, self.cache, on_device(tiles), rows, self.runs, self.scoring, results)
        return results


def on_device(array) -> torch.Tensor:
    return torch.from_numpy(array).to(DEVICE)


def used_slots(step: StepPlan, num_blocks: int, block_size: int) -> torch.Tensor:
    """bool [num_blocks, block_size]"""
    used = torch.zeros(num_blocks, block_size, dtype=torch.bool)
    for sequence in step.sequences:
        for position in range(sequence.context_length):
            used[sequence.block_table[position // block_size], position % block_size] = True
    return used


def cache(slots: torch.Tensor, heads: int, dim: int, dtype: torch.dtype, seed: int) -> tuple[torch.Tensor, ...]:
    """Numbers in the slots that are used; with scales for 8 bits."""
    numbers = random(*slots.shape, heads, dim, seed=seed)
    stored = (numbers.to(dtype),) if dtype.itemsize > 1 else quantise(numbers, dtype)
    return tuple(_where(slots.to(DEVICE), tensor) for tensor in stored)


def _where(slots: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """In float32 in between: torch.where knows no float8."""
    slots = slots.view(*slots.shape, *(1,) * (tensor.ndim - 2))
    return torch.where(slots, tensor.float(), unwritten(*tensor.shape, dtype=tensor.dtype).float()).to(tensor.dtype)


def compare(prepared: Prepared, tolerance: float) -> TilePlan:
    found, expected = prepared.attend(attend_tiles), prepared.attend(reference.attend_tiles)
    assert_close("output", found.output, expected.output, tolerance)
    assert_close("partial output", found.partial_output, expected.partial_output, tolerance)
    assert_close("partial lse", found.partial_lse, expected.partial_lse, tolerance)
    assert not found.partial_lse.isnan().any()
    return prepared.plan


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_equals_the_reference(name: str, dtype: torch.dtype) -> None:
    compare(Prepared(CASES[name], dtype), TOLERANCE[dtype])


@pytest.mark.parametrize("cache_dtype", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("dtype", DTYPES)
def test_reads_a_cache_of_8_bits(dtype: torch.dtype, cache_dtype: torch.dtype) -> None:
    sequences = (((0,), 1, 1, 3), ((0,), 1, 5, 0), ((), 9, 11, 1))
    case = Case(sequences, heads=(2, 3), dims=(80, 64), scoring={"softcap": 5.0, "sinks": True})
    compare(Prepared(case, dtype, cache_dtype), TOLERANCE[dtype])


def test_a_query_that_sees_no_key_of_a_tile_has_an_empty_partial_result() -> None:
    """Its position lies before the tile's keys; another query of the tile sees them."""
    prepared = Prepared(Case((((), 5, 2, 0),), tiling=Tiling(tile_rows=(64,), split_keys=64)), torch.float32)
    assert prepared.plan.num_partials == 4
    prepared.runs.positions[prepared.plan.tokens == 0] = 3
    results = prepared.attend(attend_tiles)
    assert (results.partial_lse[1] == -torch.inf).all() and (results.partial_output[1] == 0).all()
    assert_close("others", results.partial_output[2:], prepared.attend(reference.attend_tiles).partial_output[2:], 2e-5)


def test_slots_far_beyond_32_bits_of_numbers() -> None:
    """The last block of a cache lies beyond 2**31 numbers; the system hands out only the pages that are touched."""
    prepared, num_blocks = Prepared(Case((((), 1, 1, 2),)), torch.float16), (1 << 20) + 1
    far = [torch.empty(num_blocks, 16, 2, 64, dtype=torch.float16, device=DEVICE) for _ in range(2)]
    far[0][-1], far[1][-1] = prepared.cache.keys[0], prepared.cache.values[0]
    expected = prepared.attend(attend_tiles).output
    prepared.runs.blocks.fill_(num_blocks - 1)
    prepared.cache = PagedCache(*far)
    assert torch.equal(prepared.attend(attend_tiles).output, expected)


def test_queries_and_partial_results_far_beyond_32_bits_of_numbers() -> None:
    prepared = Prepared(Case((((), 5, 3, 2),), tiling=Tiling(tile_rows=(64,), split_keys=64), heads=(1, 1), dims=(64, 256)), torch.float16)
    expected = prepared.attend(attend_tiles)
    prepared.query = far_apart(prepared.query)
    num_partials, far = prepared.plan.num_partials, (1 << 23) + 1
    assert num_partials == 6
    prepared.runs.partials.add_(far)
    shape = (far + num_partials, 1)
    results = Results(expected.output, torch.empty(*shape, 256, device=DEVICE), torch.empty(shape, device=DEVICE))
    attend_tiles(prepared.query, prepared.cache, on_device(prepared.plan.tiles[64]), 64, prepared.runs, prepared.scoring, results)
    assert torch.equal(results.partial_output[far:], expected.partial_output)
    assert torch.equal(results.partial_lse[far:], expected.partial_lse)


@pytest.mark.parametrize("target", TARGETS.values(), ids=list(TARGETS))
@pytest.mark.parametrize("rows", Tiling().tile_rows)
def test_configurations_are_powers_of_two_and_smaller_where_numbers_are_larger(target, rows) -> None:
    for dim in (16, 64, 128, 256):
        short, long = (choose_config(target, rows, dim, num_bytes, is_quantised=False) for num_bytes in (2, 4))
        assert 128 >= short.block_n >= long.block_n >= long.masked_block_n >= 16
        assert all(n.bit_count() == 1 for c in (short, long) for n in (c.block_n, c.masked_block_n))


def test_launches_leave_out_the_mask_where_there_are_queries_enough() -> None:
    prepared = Prepared(Case((((), 3, 20, 0), ((), 1, 1, 0))), torch.float32)
    with record(TARGETS["sm_90"]) as launches:
        prepared.attend(attend_tiles)
    assert [(launch.options["BLOCK_M"], launch.options["SKIPS_MASK"]) for launch in launches] == [(16, False), (64, True)]


def test_refuses_what_it_cannot_take() -> None:
    prepared = Prepared(CASES["one token"], torch.float32)
    keys, values, results = prepared.cache.keys, prepared.cache.values, prepared.attend(attend_tiles)

    def attempt(cache: PagedCache, rows: int = 16, query: torch.Tensor = prepared.query) -> None:
        attend_tiles(query, cache, on_device(prepared.plan.tiles[16]), rows, prepared.runs, prepared.scoring, results)

    with pytest.raises(ValueError, match="scales"):
        attempt(PagedCache(keys.to(torch.int8), values.to(torch.int8)))
    with pytest.raises(ValueError, match="one format"):
        attempt(PagedCache(keys.to(torch.int8), values, keys[..., 0], keys[..., 0]))
    with pytest.raises(ValueError, match="contiguous"):
        attempt(PagedCache(keys.transpose(2, 3), values.transpose(2, 3)))
    with pytest.raises(ValueError, match="query heads for a K/V head"):
        attempt(prepared.cache, rows=1)
    with pytest.raises(ValueError, match="queries of 32"):
        attempt(prepared.cache, query=prepared.query[..., :32])
