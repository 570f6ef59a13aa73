"""Partial attention results of one token and head, merged by log-sum-exp into its output."""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def merge_partials(
    partial_output,  # float32 [num_partials, NUM_HEADS, VALUE_DIM]
    partial_lse,  # float32 [num_partials, NUM_HEADS]; -inf: no key was seen
    sinks,  # [NUM_HEADS]; used where HAS_SINKS
    tokens,  # int32 [num_merged] row of the output
    starts,  # int32 [num_merged + 1] first partial result of each; they lie one after another
    output,  # [num_tokens, NUM_HEADS, VALUE_DIM]
    NUM_HEADS: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    BLOCK_P: tl.constexpr,  # partial results read at once
    BLOCK_V: tl.constexpr,
):
    program = tl.program_id(0)
    merged = program // NUM_HEADS
    head = program % NUM_HEADS
    token = tl.load(tokens + merged).to(tl.int64)
    end = tl.load(starts + merged + 1)
    dim = tl.arange(0, BLOCK_V)
    top = tl.full([1], float("-inf"), tl.float32)
    total = tl.zeros([1], tl.float32)
    mixed = tl.zeros([BLOCK_V], tl.float32)
    for first in range(tl.load(starts + merged), end, BLOCK_P):
        partial = first + tl.arange(0, BLOCK_P)
        place = partial.to(tl.int64) * NUM_HEADS + head
        lse = tl.load(partial_lse + place, mask=partial < end, other=float("-inf"))
        is_seen = lse > float("-inf")
        part = tl.load(
            partial_output + place[:, None] * VALUE_DIM + dim[None, :],
            mask=is_seen[:, None] & (dim < VALUE_DIM)[None, :],
            other=0.0,
        )
        new_top = tl.maximum(top, tl.max(lse, 0))
        pivot = tl.where(new_top == float("-inf"), 0.0, new_top)
        weights = tl.exp2((lse - pivot) * LOG2_E)
        kept = tl.exp2((top - pivot) * LOG2_E)
        total = total * kept + tl.sum(weights, 0)
        mixed = mixed * kept + tl.sum(weights[:, None] * part, 0)
        top = new_top
    if HAS_SINKS:
        sink = tl.load(sinks + head).to(tl.float32)
        new_top = tl.maximum(top, sink)
        kept = tl.exp2((top - new_top) * LOG2_E)
        total = total * kept + tl.exp2((sink - new_top) * LOG2_E)
        mixed = mixed * kept
    result = mixed / tl.where(total > 0, total, 1.0)
    place = (token * NUM_HEADS + head) * VALUE_DIM + dim
    tl.store(output + place, result.to(output.dtype.element_ty), mask=dim < VALUE_DIM)
