"""The CPU backend against attention computed one query at a time, straight from its definition."""

import math

import pytest
import torch
from attention.steps import random_step

from batchpaged.attention.backend import AttentionParams, LayerShape
from batchpaged.attention.cpu import CpuAttention
from batchpaged.engine.step import BlockCopy

BLOCK_SIZE = 4


def naive(plan, keys, values, query, params):
    """keys, values [num_kv_heads, num_blocks, block_size, dim] -> [num_tokens, num_heads, dim]."""
    num_heads, num_tokens, _ = query.shape
    repeats = num_heads // keys.shape[0]
    output = torch.full((num_tokens, num_heads, values.shape[-1]), float("nan"))
    row = 0
    for step in plan.sequences:
        table = list(step.block_table)
        k = keys[:, table].flatten(1, 2).repeat_interleave(repeats, 0)
        v = values[:, table].flatten(1, 2).repeat_interleave(repeats, 0)
        for position in range(step.context_length - step.query_length, step.context_length):
            first = 0 if params.sliding_window is None else max(0, position + 1 - params.sliding_window)
            scores = torch.einsum("hd,hld->hl", query[:, row], k[:, first : position + 1]) * params.scaling
            if params.softcap is not None:
                scores = params.softcap * torch.tanh(scores / params.softcap)
            if params.sinks is not None:
                scores = torch.cat([scores, params.sinks[:, None]], dim=1)
            weights = scores.softmax(-1)[:, : position + 1 - first]
            output[row] = torch.einsum("hl,hld->hd", weights, v[:, first : position + 1])
            row += 1
    return output


def filled_backend(num_blocks, heads, dim, value_dim, generator):
    backend = CpuAttention((LayerShape(heads, dim, value_dim),), num_blocks, BLOCK_SIZE, torch.float32)
    for cache in (backend.keys[0], backend.values[0]):
        cache.copy_(torch.randn(cache.shape, generator=generator))
    return backend


VARIANTS = {
    "plain": {},
    "window": {"sliding_window": 5},
    "window shorter than a block": {"sliding_window": 2},
    "softcap": {"softcap": 3.0},
    "sinks": {"sinks": True},
    "all": {"sliding_window": 9, "softcap": 3.0, "sinks": True},
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("seed", range(12))
def test_equals_the_definition(seed, variant):
    generator = torch.Generator().manual_seed(seed)
    plan, num_blocks = random_step(seed, BLOCK_SIZE, max_blocks=9)
    kv_heads, repeats, dim, value_dim = (1 + seed % 3), (1, 3)[seed % 2], 8, (8, 6)[seed % 2]
    options = dict(VARIANTS[variant])
    if options.pop("sinks", False):
        options["sinks"] = torch.randn(kv_heads * repeats, generator=generator)
    params = AttentionParams(0.3, options.get("sliding_window"), options.get("softcap"), options.get("sinks"))
    backend = filled_backend(num_blocks, kv_heads, dim, value_dim, generator)
    query = torch.randn(kv_heads * repeats, plan.num_tokens, dim, generator=generator)
    key = torch.randn(kv_heads, plan.num_tokens, dim, generator=generator)
    value = torch.randn(kv_heads, plan.num_tokens, value_dim, generator=generator)
    backend.begin(plan)
    output = backend.attend(0, query, key, value, params)
    torch.testing.assert_close(output, naive(plan, backend.keys[0], backend.values[0], query, params), atol=2e-5, rtol=1e-4)


def test_keys_and_values_are_stored_in_their_slots():
    generator = torch.Generator().manual_seed(0)
    plan, num_blocks = random_step(3, BLOCK_SIZE)
    backend = filled_backend(num_blocks, 2, 4, 4, generator)
    key, value = (torch.randn(2, plan.num_tokens, 4, generator=generator) for _ in range(2))
    backend.begin(plan)
    backend.attend(0, torch.randn(2, plan.num_tokens, 4), key, value, AttentionParams(1.0, None, None, None))
    for row, slot in enumerate(plan.slots):
        assert torch.equal(backend.keys[0][:, slot // BLOCK_SIZE, slot % BLOCK_SIZE], key[:, row])
        assert torch.equal(backend.values[0][:, slot // BLOCK_SIZE, slot % BLOCK_SIZE], value[:, row])


def test_copies_read_all_sources_before_they_write():
    backend = filled_backend(4, 1, 2, 2, torch.Generator().manual_seed(0))
    before = backend.keys[0].clone()
    backend.copy((BlockCopy(0, 1, 3), BlockCopy(1, 2, 2)))
    assert torch.equal(backend.keys[0][:, 1, :3], before[:, 0, :3])
    assert torch.equal(backend.keys[0][:, 2, :2], before[:, 1, :2])
    assert torch.equal(backend.keys[0][:, 1, 3:], before[:, 1, 3:])
    assert math.isfinite(backend.keys[0].sum().item())
