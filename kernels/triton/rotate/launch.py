"""Checks, grid and configuration of rotating queries and keys."""

import torch
import triton

from batchpaged.kernels.triton.launching import Example, check, launch, without_memory
from batchpaged.kernels.triton.rope_store.launch import Angles, checked_rotary_dim
from batchpaged.kernels.triton.rotate.kernel import rotate_kernel
from batchpaged.kernels.triton.store_kv.launch import heads_per_program


def rotate(
    query: torch.Tensor,  # [num_tokens, num_heads, head_dim], last dimension contiguous
    key: torch.Tensor,  # [num_tokens, num_kv_heads, head_dim], likewise
    angles: Angles,
) -> tuple[torch.Tensor, torch.Tensor]:
    """-> both, rotated, contiguous. Rotated in float32, rounded once. Raises ValueError."""
    num_tokens, num_heads, dim = query.shape
    check(query.stride(2) == key.stride(2) == 1, "a head must lie in one piece")
    check(key.shape[0] == num_tokens and key.shape[2] == dim, f"keys {tuple(key.shape)} for queries {tuple(query.shape)}")
    rotary_dim = checked_rotary_dim(angles, num_tokens, dim)
    padded = triton.next_power_of_2(dim)
    heads = heads_per_program(num_heads, padded)
    num_query_programs = triton.cdiv(num_heads, heads)
    outputs = tuple(torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (query, key))
    launch(
        rotate_kernel, (num_tokens, num_query_programs + triton.cdiv(key.shape[1], heads)),
        query, key, angles.cosine, angles.sine, *outputs,
        num_heads, key.shape[1], num_query_programs, angles.cosine.stride(0), query.stride()[:2], key.stride()[:2],
        DIM=dim, PADDED_DIM=padded, ROTARY_DIM=rotary_dim, HEADS=heads, IS_INTERLEAVED=angles.is_interleaved, num_warps=4,
    )  # fmt: skip
    return outputs


def _example(num_heads: int, num_kv_heads: int, dim: int, dtype: torch.dtype) -> None:
    query, key = (without_memory(256, heads, dim, dtype=dtype) for heads in (num_heads, num_kv_heads))
    angles = without_memory(256, dim, dtype=dtype)
    rotate(query, key, Angles(angles, angles))


EXAMPLES = (Example("32 and 8 heads of 128", lambda dtype: _example(32, 8, 128, dtype)),)
