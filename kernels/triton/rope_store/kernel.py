"""Rotary position embedding (Su et al., 2021) of queries and keys; keys and values go straight to their slots.

One program for one token and some heads: the first programs of a token rotate queries, the others store keys and values.
"""

import triton
import triton.language as tl

from batchpaged.kernels.triton.kv_format import store_rows


@triton.jit
def rotated(
    x, token, heads, kept, strides, cosine, sine, angle_stride,
    DIM: tl.constexpr, PADDED_DIM: tl.constexpr, ROTARY_DIM: tl.constexpr, IS_INTERLEAVED: tl.constexpr,
):  # fmt: skip
    """-> [HEADS, PADDED_DIM] float32. Dimensions from ROTARY_DIM on stay as they are."""
    dims = tl.arange(0, PADDED_DIM)
    is_turned = dims < ROTARY_DIM
    row = x + token * strides[0] + heads[:, None] * strides[1]
    values = tl.load(row + dims[None, :], mask=kept[:, None] & (dims < DIM)[None, :], other=0.0).to(tl.float32)
    if IS_INTERLEAVED:
        is_first = dims % 2 == 0
        partners = dims ^ 1
    else:
        is_first = dims < ROTARY_DIM // 2
        partners = tl.where(is_first, dims + ROTARY_DIM // 2, dims - ROTARY_DIM // 2)
    # The other half is read again, from the processor's cache: cheaper than moving it between threads.
    others = tl.load(row + partners[None, :], mask=kept[:, None] & is_turned[None, :], other=0.0).to(tl.float32)
    cosines = tl.load(cosine + token * angle_stride + dims, mask=is_turned, other=1.0).to(tl.float32)
    sines = tl.load(sine + token * angle_stride + dims, mask=is_turned, other=0.0).to(tl.float32)
    return values * cosines[None, :] + others * tl.where(is_first, -sines, sines)[None, :]


@triton.jit
def rope_store_kernel(
    query, key, value, cosine, sine, slots, output, key_cache, value_cache, key_scales, value_scales,
    num_heads, num_kv_heads, num_query_programs, angle_stride,
    query_strides, key_strides, value_strides, key_cache_strides, value_cache_strides, key_scale_strides, value_scale_strides,
    BLOCK_SIZE: tl.constexpr, DIM: tl.constexpr, VALUE_DIM: tl.constexpr, PADDED_DIM: tl.constexpr,
    PADDED_VALUE_DIM: tl.constexpr, ROTARY_DIM: tl.constexpr, HEADS: tl.constexpr, IS_INTERLEAVED: tl.constexpr,
    FORMAT: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    program = tl.program_id(1)
    if program < num_query_programs:
        heads = (program * HEADS + tl.arange(0, HEADS)).to(tl.int64)
        kept = heads < num_heads
        turned = rotated(
            query, token, heads, kept, query_strides, cosine, sine, angle_stride, DIM, PADDED_DIM, ROTARY_DIM, IS_INTERLEAVED
        )
        dims = tl.arange(0, PADDED_DIM)
        place = output + (token * num_heads + heads[:, None]) * DIM + dims[None, :]
        tl.store(place, turned.to(output.dtype.element_ty), mask=kept[:, None] & (dims < DIM)[None, :])
    else:
        heads = ((program - num_query_programs) * HEADS + tl.arange(0, HEADS)).to(tl.int64)
        slot = tl.load(slots + token).to(tl.int64)
        kept = (heads < num_kv_heads) & (slot >= 0)
        block, offset = slot // BLOCK_SIZE, slot % BLOCK_SIZE
        k = rotated(
            key, token, heads, kept, key_strides, cosine, sine, angle_stride, DIM, PADDED_DIM, ROTARY_DIM, IS_INTERLEAVED
        )
        store_rows(k, key_cache, key_scales, block, offset, heads, kept, key_cache_strides, key_scale_strides, DIM, FORMAT)
        dims = tl.arange(0, PADDED_VALUE_DIM)
        at = value + token * value_strides[0] + heads[:, None] * value_strides[1] + dims[None, :]
        v = tl.load(at, mask=kept[:, None] & (dims < VALUE_DIM)[None, :], other=0.0).to(tl.float32)
        store_rows(
            v, value_cache, value_scales, block, offset, heads, kept, value_cache_strides, value_scale_strides, VALUE_DIM,
            FORMAT,
        )  # fmt: skip
