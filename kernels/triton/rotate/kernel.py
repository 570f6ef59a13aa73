"""Rotary position embedding (Su et al., 2021) of queries and keys, where something else stores the keys.

One program for one token and some heads: the first programs of a token rotate queries, the others keys.
"""

import triton
import triton.language as tl

from batchpaged.kernels.triton.rope_store.kernel import rotated


@triton.jit
def _rotate_heads(
    x, output, cosine, sine, token, program, num_heads, strides, angle_stride,
    DIM: tl.constexpr, PADDED_DIM: tl.constexpr, ROTARY_DIM: tl.constexpr, HEADS: tl.constexpr, IS_INTERLEAVED: tl.constexpr,
):  # fmt: skip
    heads = (program * HEADS + tl.arange(0, HEADS)).to(tl.int64)
    kept = heads < num_heads
    turned = rotated(x, token, heads, kept, strides, cosine, sine, angle_stride, DIM, PADDED_DIM, ROTARY_DIM, IS_INTERLEAVED)
    dims = tl.arange(0, PADDED_DIM)
    place = output + (token * num_heads + heads[:, None]) * DIM + dims[None, :]
    tl.store(place, turned.to(output.dtype.element_ty), mask=kept[:, None] & (dims < DIM)[None, :])


@triton.jit
def rotate_kernel(
    query, key, cosine, sine, query_output, key_output,
    num_heads, num_kv_heads, num_query_programs, angle_stride, query_strides, key_strides,
    DIM: tl.constexpr, PADDED_DIM: tl.constexpr, ROTARY_DIM: tl.constexpr, HEADS: tl.constexpr, IS_INTERLEAVED: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    program = tl.program_id(1)
    if program < num_query_programs:
        _rotate_heads(
            query, query_output, cosine, sine, token, program, num_heads, query_strides, angle_stride,
            DIM, PADDED_DIM, ROTARY_DIM, HEADS, IS_INTERLEAVED,
        )  # fmt: skip
    else:
        _rotate_heads(
            key, key_output, cosine, sine, token, program - num_query_programs, num_kv_heads, key_strides, angle_stride,
            DIM, PADDED_DIM, ROTARY_DIM, HEADS, IS_INTERLEAVED,
        )  # fmt: skip
