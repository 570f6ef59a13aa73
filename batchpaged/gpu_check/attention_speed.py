"""Attention alone, one layer of the model's shape: decode, prefill, and what shared runs save."""

from dataclasses import dataclass

import torch

from batchpaged.attention.backend import AttentionParams
from batchpaged.attention.layer_shape import LayerShape
from batchpaged.attention.sharing import ALWAYS, NEVER, SharingRule
from batchpaged.attention.triton import TritonAttention
from batchpaged.engine.step import StepPlan
from batchpaged.gpu_check.sizes import ModelShape, Sizes
from batchpaged.gpu_check.steps import BLOCK_SIZE, decode_step, prefill_step
from batchpaged.gpu_check.timing import seconds


@dataclass(frozen=True)
class AttentionSpeed:
    decode: dict[tuple[int, int], float]  # (sequences, context length) -> bytes of keys and values per second
    prefill: float  # FLOP per second of visible pairs
    together: float  # seconds of a decode step whose groups share a prefix
    alone: float  # of the same step, each sequence by itself


def measure_attention(sizes: Sizes, device: str) -> AttentionSpeed:
    shape = sizes.model
    groups, members, prefix = sizes.shared
    shared = decode_step(groups, members, prefix, prefix + 1)
    pairs = sizes.prefill * (sizes.prefill + 1) / 2
    return AttentionSpeed(
        decode={
            (count, context): _cache_bytes(shape, count * context, sizes.dtype)
            / _attend_seconds(sizes, decode_step(count, 1, 0, context), NEVER, device)
            for count, context in sizes.decode
        },
        prefill=4 * shape.num_heads * shape.head_dim * pairs / _attend_seconds(sizes, prefill_step(sizes.prefill), NEVER, device),
        together=_attend_seconds(sizes, shared, ALWAYS, device),
        alone=_attend_seconds(sizes, shared, NEVER, device),
    )


def _cache_bytes(shape: ModelShape, num_tokens: int, dtype: torch.dtype) -> int:
    return 2 * num_tokens * shape.num_kv_heads * shape.head_dim * dtype.itemsize


def _attend_seconds(sizes: Sizes, step: tuple[StepPlan, int], rule: SharingRule, device: str) -> float:
    """Attention of one layer, its plan made beforehand; all of the cache holds random numbers."""
    shape, (plan, num_blocks) = sizes.model, step
    layer = LayerShape(shape.num_kv_heads, shape.head_dim, shape.head_dim)
    backend = TritonAttention((layer,), num_blocks, BLOCK_SIZE, sizes.dtype, device, rule)
    for cache in (backend.caches[0].keys, backend.caches[0].values):
        cache.normal_()
    query, key, value = (
        torch.randn(plan.num_tokens, heads, shape.head_dim, device=device).to(sizes.dtype).transpose(0, 1)
        for heads in (shape.num_heads, shape.num_kv_heads, shape.num_kv_heads)
    )
    params = AttentionParams(shape.head_dim**-0.5, None, None, None)
    backend.begin(plan)
    return seconds(lambda: backend.attend(0, query, key, value, params), device)
