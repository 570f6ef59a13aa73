"""Keys and values of a step's tokens go to their slots; one program for one token and some heads."""

import triton
import triton.language as tl

from batchpaged.kernels.triton.kv_format import store_rows


@triton.jit
def store_kv_kernel(
    key, value, key_cache, value_cache, key_scales, value_scales, slots,
    num_kv_heads, key_strides, value_strides, key_cache_strides, value_cache_strides, key_scale_strides, value_scale_strides,
    BLOCK_SIZE: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    PADDED_KEY_DIM: tl.constexpr, PADDED_VALUE_DIM: tl.constexpr, HEADS: tl.constexpr, FORMAT: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    slot = tl.load(slots + token).to(tl.int64)
    kept = (heads < num_kv_heads) & (slot >= 0)
    block, offset = slot // BLOCK_SIZE, slot % BLOCK_SIZE
    heads = heads.to(tl.int64)

    key_dims = tl.arange(0, PADDED_KEY_DIM)
    at = key + token * key_strides[0] + heads[:, None] * key_strides[1] + key_dims[None, :]
    k = tl.load(at, mask=kept[:, None] & (key_dims < KEY_DIM)[None, :], other=0.0).to(tl.float32)
    store_rows(k, key_cache, key_scales, block, offset, heads, kept, key_cache_strides, key_scale_strides, KEY_DIM, FORMAT)

    value_dims = tl.arange(0, PADDED_VALUE_DIM)
    at = value + token * value_strides[0] + heads[:, None] * value_strides[1] + value_dims[None, :]
    v = tl.load(at, mask=kept[:, None] & (value_dims < VALUE_DIM)[None, :], other=0.0).to(tl.float32)
    store_rows(
        v, value_cache, value_scales, block, offset, heads, kept, value_cache_strides, value_scale_strides, VALUE_DIM, FORMAT
    )
