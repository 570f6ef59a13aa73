"""Checks, grid and configuration of storing keys and values."""

import torch
import triton

from batchpaged.kernels.triton.kv_format import PLAIN, cache_format, kernel_view
from batchpaged.kernels.triton.launching import Example, check, launch, without_memory
from batchpaged.kernels.triton.store_kv.kernel import store_kv_kernel

# Values of one program: enough to keep its threads busy, few enough to stay in registers.
VALUES_PER_PROGRAM = 2048


def store_kv(
    key: torch.Tensor,  # [num_tokens, num_kv_heads, key_dim], last dimension contiguous
    value: torch.Tensor,  # [num_tokens, num_kv_heads, value_dim], last dimension contiguous
    key_cache: torch.Tensor,  # [num_blocks, block_size, num_kv_heads, key_dim], any order in memory but the last
    value_cache: torch.Tensor,  # [num_blocks, block_size, num_kv_heads, value_dim]
    slots: torch.Tensor,  # [num_tokens] int64, block * block_size + offset; below 0: this token is not stored
    key_scales: torch.Tensor | None = None,  # [num_blocks, block_size, num_kv_heads] float32, for caches of 8 bits
    value_scales: torch.Tensor | None = None,
) -> None:
    """Write to the cache, in its type. What is not finite in that type becomes 0. Raises ValueError."""
    check_cache(key, key_cache, key_scales)
    check_cache(value, value_cache, value_scales)
    check(cache_format(key_cache) == cache_format(value_cache), "keys and values must be stored in one format")
    check(slots.shape == key.shape[:1] == value.shape[:1], f"{tuple(slots.shape)} slots for {key.shape[0]} tokens")
    num_tokens, num_kv_heads, key_dim = key.shape
    padded = triton.next_power_of_2(key_dim), triton.next_power_of_2(value.shape[2])
    heads = heads_per_program(num_kv_heads, max(padded))
    launch(
        store_kv_kernel, (num_tokens, triton.cdiv(num_kv_heads, heads)),
        key, value, kernel_view(key_cache), kernel_view(value_cache), key_scales, value_scales, slots, num_kv_heads,
        key.stride()[:2], value.stride()[:2], key_cache.stride()[:3], value_cache.stride()[:3],
        scale_strides(key_scales), scale_strides(value_scales),
        BLOCK_SIZE=key_cache.shape[1], KEY_DIM=key_dim, VALUE_DIM=value.shape[2], PADDED_KEY_DIM=padded[0],
        PADDED_VALUE_DIM=padded[1], HEADS=heads, FORMAT=cache_format(key_cache), num_warps=4,
    )  # fmt: skip


def check_cache(new: torch.Tensor, cache: torch.Tensor, scales: torch.Tensor | None) -> None:
    check(new.ndim == 3 and new.stride(2) == 1, f"new values must be [tokens, heads, dim] with whole heads, not {new.shape}")
    check(cache.ndim == 4 and cache.stride(3) == 1, f"a cache must be [blocks, block_size, heads, dim], not {cache.shape}")
    check(cache.shape[2:] == new.shape[1:], f"a cache of heads {tuple(cache.shape[2:])} for {tuple(new.shape[1:])}")
    check((scales is None) == (cache_format(cache) == PLAIN), f"a cache of {cache.dtype} comes with scales, or without")
    if scales is not None:
        check(scales.shape == cache.shape[:3] and scales.dtype is torch.float32, "scales are float32, one a slot and head")


def heads_per_program(num_heads: int, padded_dim: int) -> int:
    return min(triton.next_power_of_2(num_heads), max(1, VALUES_PER_PROGRAM // padded_dim))


def scale_strides(scales: torch.Tensor | None) -> tuple[int, ...]:
    return (0, 0, 0) if scales is None else scales.stride()


def _example(block_size: int, num_kv_heads: int, dim: int, cache_dtype: torch.dtype | None, dtype: torch.dtype) -> None:
    new = without_memory(256, num_kv_heads, dim, dtype=dtype)
    cache = without_memory(1024, block_size, num_kv_heads, dim, dtype=cache_dtype or dtype)
    scales = None if cache_dtype is None else without_memory(1024, block_size, num_kv_heads, dtype=torch.float32)
    store_kv(new, new, cache, cache, without_memory(256, dtype=torch.int64), scales, scales)


EXAMPLES = (
    Example("8 heads of 128, blocks of 16", lambda dtype: _example(16, 8, 128, None, dtype)),
    Example("5 heads of 80, blocks of 8", lambda dtype: _example(8, 5, 80, None, dtype)),
    Example("8 heads of 128, int8", lambda dtype: _example(16, 8, 128, torch.int8, dtype)),
    Example("8 heads of 128, fp8", lambda dtype: _example(16, 8, 128, torch.float8_e4m3fn, dtype)),
)
