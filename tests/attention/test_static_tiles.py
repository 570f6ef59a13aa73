"""A decode step's tiles in static, padded buffers: the same output as in any other step, from tensors that stay."""

import pytest
import torch
from engine.test_decode_steps import BLOCK_SIZE, NUM_BLOCKS, decode_plan
from kernel_tensors import DEVICE, random

from batchpaged.attention.backend import AttentionParams
from batchpaged.attention.layer_shape import LayerShape
from batchpaged.attention.plan import plan_attention
from batchpaged.attention.sharing import ALWAYS
from batchpaged.attention.static_tiles import Capacity
from batchpaged.attention.tiles import plan_tiles
from batchpaged.attention.triton import TritonAttention
from batchpaged.engine.buckets import padded
from batchpaged.engine.step import StepPlan
from batchpaged.kernels.triton.paged_attention.tiling import Tiling

SHAPE, NUM_HEADS = LayerShape(num_kv_heads=1, head_dim=16, value_dim=16), 2
TILING = Tiling(tile_rows=(16, 64), split_keys=16)  # several cuts in a context
PLANS = [
    decode_plan([40, 3, 17], seed=1),
    decode_plan([41, 33, 50, 34], num_shared=4),
    decode_plan([25, 17], num_shared=2),
    decode_plan([2] * 5),
]


def make_backend() -> TritonAttention:
    backend = TritonAttention((SHAPE, SHAPE), NUM_BLOCKS + 1, BLOCK_SIZE, torch.float32, DEVICE, tiling=TILING)
    for seed, cache in enumerate(backend.caches):
        for numbers in (cache.keys, cache.values):
            numbers.copy_(random(*numbers.shape, seed=seed))
            numbers[NUM_BLOCKS] = 77  # the scratch block, which must not matter
    return backend


def attend(backend: TritonAttention, plan: StepPlan) -> list[torch.Tensor]:
    """Of two layers: one with a window, one with sinks."""
    inputs = [random(heads, 8, 16, seed=heads)[:, : plan.num_tokens] for heads in (NUM_HEADS, 1, 1)]
    layers = AttentionParams(0.25, 12, None, None), AttentionParams(0.25, None, None, random(NUM_HEADS))
    return [backend.attend(layer, *inputs, params) for layer, params in enumerate(layers)]


def test_outputs_are_those_of_any_other_step() -> None:
    plain, static, shapes = make_backend(), make_backend(), []
    for plan in (*PLANS, *PLANS):
        plain.begin(plan)
        step = padded(plan, 4 if plan.num_tokens <= 4 else 8, NUM_BLOCKS, BLOCK_SIZE)
        shapes.append(static.begin_static(step))
        found = attend(static, step)
        for expected, result in zip(attend(plain, plan), found, strict=True):
            torch.testing.assert_close(result[: plan.num_tokens], expected, atol=2e-5, rtol=2e-5)
    assert len(set(shapes[len(PLANS) :])) == 2, "the second time each size has one shape"


def test_tensors_of_one_shape_stay_where_they_are() -> None:
    backend, seen = make_backend(), {}
    for plan in (PLANS[0], PLANS[0], PLANS[1], PLANS[1], PLANS[0]):
        step = padded(plan, 4, NUM_BLOCKS, BLOCK_SIZE)
        shape = backend.begin_static(step)
        attend(backend, step)
        addresses = [backend._slots.data_ptr()]
        for tiles in backend._plans.values():
            tensors = (*tiles.tiles.values(), *vars(tiles.runs).values(), tiles.merged_tokens, tiles.merge_starts)
            addresses += [tensor.data_ptr() for tensor in tensors]
        seen.setdefault(shape, []).append(addresses)
    assert [len(addresses) for addresses in seen.values()] == [1, 1, 3]  # nothing known of the layers; too small; enough
    *_, enough = seen.values()
    assert enough[0] == enough[1] == enough[2] and all(address % 64 == 0 for address in enough[0][1:])


@pytest.mark.parametrize("window", [None, 12])
def test_capacities_hold_every_plan_and_never_shrink(window: int | None) -> None:
    capacity = Capacity()
    for step in PLANS:
        before = capacity
        plan = plan_tiles(plan_attention(step.sequences, BLOCK_SIZE, ALWAYS), NUM_HEADS, window, TILING)
        capacity = capacity.grown_to(plan)
        assert all(dict(capacity.num_tiles)[rows] >= len(tiles) for rows, tiles in plan.tiles.items())
        assert capacity.num_blocks >= max(len(plan.blocks), before.num_blocks)
        assert capacity.num_queries >= max(len(plan.tokens), before.num_queries)
        assert capacity.num_partials >= max(plan.num_partials, before.num_partials)
    assert capacity.grown_to(plan) == capacity
