"""Checks, grid and configuration of rotating queries and keys, and storing keys and values."""

from dataclasses import dataclass

import torch
import triton

from batchpaged.kernels.triton.kv_format import cache_format, kernel_view
from batchpaged.kernels.triton.launching import Example, check, launch, without_memory
from batchpaged.kernels.triton.rope_store.kernel import rope_store_kernel
from batchpaged.kernels.triton.store_kv.launch import check_cache, heads_per_program, scale_strides


@dataclass(frozen=True)
class Angles:
    """Of each token's position, and for each rotated dimension: the first `rotary_dim` of a head."""

    cosine: torch.Tensor  # [num_tokens, rotary_dim], last dimension contiguous
    sine: torch.Tensor  # [num_tokens, rotary_dim], likewise
    is_interleaved: bool = False  # dimension 2i turns with 2i + 1; else i with i + rotary_dim / 2


def rope_store(
    query: torch.Tensor,  # [num_tokens, num_heads, head_dim], last dimension contiguous
    key: torch.Tensor,  # [num_tokens, num_kv_heads, head_dim], likewise
    value: torch.Tensor,  # [num_tokens, num_kv_heads, value_dim], likewise
    angles: Angles,
    key_cache: torch.Tensor,  # this and the rest as in store_kv
    value_cache: torch.Tensor,
    slots: torch.Tensor,
    key_scales: torch.Tensor | None = None,
    value_scales: torch.Tensor | None = None,
) -> torch.Tensor:
    """-> rotated queries [num_tokens, num_heads, head_dim]. Rotated in float32, rounded once. Raises ValueError."""
    check_cache(key, key_cache, key_scales)
    check_cache(value, value_cache, value_scales)
    check(cache_format(key_cache) == cache_format(value_cache), "keys and values must be stored in one format")
    num_tokens, num_heads, dim = query.shape
    check(key.shape[0] == value.shape[0] == slots.shape[0] == num_tokens, "as many keys, values and slots as queries")
    check(query.stride(2) == 1 and key.shape[2] == dim, f"heads of {key.shape[2]} for queries of {dim}")
    rotary_dim = checked_rotary_dim(angles, num_tokens, dim)
    padded, padded_value = triton.next_power_of_2(dim), triton.next_power_of_2(value.shape[2])
    heads = heads_per_program(num_heads, max(padded, padded_value))
    num_query_programs = triton.cdiv(num_heads, heads)
    output = torch.empty((num_tokens, num_heads, dim), dtype=query.dtype, device=query.device)
    launch(
        rope_store_kernel, (num_tokens, num_query_programs + triton.cdiv(key.shape[1], heads)),
        query, key, value, angles.cosine, angles.sine, slots, output, kernel_view(key_cache), kernel_view(value_cache),
        key_scales, value_scales, num_heads, key.shape[1], num_query_programs, angles.cosine.stride(0),
        query.stride()[:2], key.stride()[:2], value.stride()[:2], key_cache.stride()[:3], value_cache.stride()[:3],
        scale_strides(key_scales), scale_strides(value_scales),
        BLOCK_SIZE=key_cache.shape[1], DIM=dim, VALUE_DIM=value.shape[2], PADDED_DIM=padded, PADDED_VALUE_DIM=padded_value,
        ROTARY_DIM=rotary_dim, HEADS=heads, IS_INTERLEAVED=angles.is_interleaved, FORMAT=cache_format(key_cache), num_warps=4,
    )  # fmt: skip
    return output


def checked_rotary_dim(angles: Angles, num_tokens: int, dim: int) -> int:
    rotary_dim = angles.cosine.shape[1]
    check(rotary_dim <= dim and rotary_dim % 2 == 0, f"{rotary_dim} rotated dimensions of {dim}")
    is_alike = angles.cosine.shape == angles.sine.shape and angles.cosine.stride() == angles.sine.stride()
    check(is_alike and angles.cosine.shape[0] == num_tokens, f"angles {tuple(angles.cosine.shape)} of {num_tokens} tokens")
    check(angles.cosine.stride(1) == 1, "angles with a contiguous last dimension")
    return rotary_dim


def _example(num_heads: int, num_kv_heads: int, dim: int, cache_dtype: torch.dtype | None, dtype: torch.dtype) -> None:
    new, angles = without_memory(256, num_kv_heads, dim, dtype=dtype), without_memory(256, dim, dtype=dtype)
    cache = without_memory(1024, 16, num_kv_heads, dim, dtype=cache_dtype or dtype)
    scales = None if cache_dtype is None else without_memory(1024, 16, num_kv_heads, dtype=torch.float32)
    query, slots = without_memory(256, num_heads, dim, dtype=dtype), without_memory(256, dtype=torch.int64)
    rope_store(query, new, new, Angles(angles, angles), cache, cache, slots, scales, scales)


EXAMPLES = (
    Example("32 and 8 heads of 128", lambda dtype: _example(32, 8, 128, None, dtype)),
    Example("9 and 3 heads of 80", lambda dtype: _example(9, 3, 80, None, dtype)),
    Example("32 and 8 heads of 128, int8", lambda dtype: _example(32, 8, 128, torch.int8, dtype)),
    Example("32 and 8 heads of 128, fp8", lambda dtype: _example(32, 8, 128, torch.float8_e4m3fn, dtype)),
)
