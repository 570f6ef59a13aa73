"""Paged attention: one program is one tile, some queries of one K/V head against some keys of one run of blocks.

Prefill, decode and runs that many sequences share differ in their tiles alone; see tiles.py for what a tile is.

    1. rows       the queries of a tile, times the query heads of the K/V head, are the rows of all matrix products
    2. keys       position -> block id -> slot; BLOCK_N keys at a time, whatever the block size
    3. softmax    online, in float32, base 2
    4. result     the output itself where no other tile has these queries, else a partial result to be merged
"""

import triton
import triton.language as tl

from batchpaged.kernels.triton.kv_format import fp8_to_float16

LN_2 = tl.constexpr(0.6931471805599453)
LOG2_E = tl.constexpr(1.4426950408889634)
TILE_FIELDS = tl.constexpr(8)


@triton.jit
def attend_tiles(
    query,  # [num_tokens, num_heads, HEAD_DIM], by strides
    keys,  # [num_slots, NUM_KV_HEADS, HEAD_DIM]
    values,  # [num_slots, NUM_KV_HEADS, VALUE_DIM]
    key_scales,  # float32 [num_slots, NUM_KV_HEADS]; where FORMAT is not plain
    value_scales,
    sinks,  # [num_heads]; used where HAS_SINKS
    output,  # [num_tokens, num_heads, VALUE_DIM]
    partial_output,  # float32 [num_partials, num_heads, VALUE_DIM]
    partial_lse,  # float32 [num_partials, num_heads]
    tiles,  # int32 [num_tiles, TILE_FIELDS]
    blocks,  # int32, block ids of all runs
    tokens,  # int32 [num_queries] row of the step's token axis
    positions,  # int32 [num_queries]
    partials,  # int32 [num_queries] row of the partial results
    token_stride,  # of query
    head_stride,
    scale,  # scores times this are exponents of 2: scaling * log2(e), or softcap * log2(e)
    softcap_scale,  # scaling / softcap
    window,
    NUM_KV_HEADS: tl.constexpr,
    REPEATS: tl.constexpr,  # query heads of a K/V head
    HEAD_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    FORMAT: tl.constexpr,  # of keys and values, see kv_format.py
    SKIPS_MASK: tl.constexpr,  # keys that all queries see are attended to in a loop without a mask
    PRECISION: tl.constexpr,  # of products of float32
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MASKED_BLOCK_N: tl.constexpr,  # where there is a mask
    BLOCK_D: tl.constexpr,  # HEAD_DIM, rounded up to a power of two
    BLOCK_V: tl.constexpr,  # VALUE_DIM, likewise
):
    program = tl.program_id(0)
    kv_head = program % NUM_KV_HEADS
    tile = tiles + (program // NUM_KV_HEADS).to(tl.int64) * TILE_FIELDS
    first_query = tl.load(tile)
    num_queries = tl.load(tile + 1)
    first_block = tl.load(tile + 2)
    run_start = tl.load(tile + 3)
    begin = tl.load(tile + 4)
    seen_by_all = tl.load(tile + 5)
    end = tl.load(tile + 6)
    is_final = tl.load(tile + 7)

    row = tl.arange(0, BLOCK_M)
    is_row = row < num_queries * REPEATS
    index = first_query + row // REPEATS
    head = kv_head * REPEATS + row % REPEATS
    token = tl.load(tokens + index, mask=is_row, other=0).to(tl.int64)
    position = tl.load(positions + index, mask=is_row, other=-1)
    dim = tl.arange(0, BLOCK_D)
    q = tl.load(
        query + (token * token_stride + head * head_stride)[:, None] + dim[None, :],
        mask=is_row[:, None] & (dim < HEAD_DIM)[None, :],
        other=0.0,
    )

    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    mixed = tl.zeros([BLOCK_M, BLOCK_V], tl.float32)
    if SKIPS_MASK and not HAS_WINDOW:
        whole_end = begin + (seen_by_all - begin) // BLOCK_N * BLOCK_N
        top, total, mixed = _attend(
            q, position, top, total, mixed, keys, values, key_scales, value_scales, blocks + first_block, run_start,
            begin, whole_end, whole_end, kv_head, scale, softcap_scale, window,
            NUM_KV_HEADS, HEAD_DIM, VALUE_DIM, BLOCK_SIZE, False, HAS_SOFTCAP, FORMAT, False, PRECISION,
            BLOCK_N, BLOCK_D, BLOCK_V,
        )  # fmt: skip
        begin = whole_end
    top, total, mixed = _attend(
        q, position, top, total, mixed, keys, values, key_scales, value_scales, blocks + first_block, run_start,
        begin, end, end, kv_head, scale, softcap_scale, window,
        NUM_KV_HEADS, HEAD_DIM, VALUE_DIM, BLOCK_SIZE, HAS_WINDOW, HAS_SOFTCAP, FORMAT, True, PRECISION,
        MASKED_BLOCK_N, BLOCK_D, BLOCK_V,
    )  # fmt: skip

    is_seen = total > 0
    result = mixed / tl.where(is_seen, total, 1.0)[:, None]
    lse = tl.where(is_seen, (top + tl.log2(tl.where(is_seen, total, 1.0))) * LN_2, float("-inf"))
    value_dim = tl.arange(0, BLOCK_V)
    is_stored = is_row[:, None] & (value_dim < VALUE_DIM)[None, :]
    num_heads: tl.constexpr = NUM_KV_HEADS * REPEATS
    if is_final:
        if HAS_SINKS:
            sink = tl.load(sinks + head).to(tl.float32)
            result = _beside_sink(result, lse, sink)
        place = (token * num_heads + head)[:, None] * VALUE_DIM + value_dim[None, :]
        tl.store(output + place, result.to(output.dtype.element_ty), mask=is_stored)
    else:
        partial = tl.load(partials + index, mask=is_row, other=0).to(tl.int64) * num_heads + head
        tl.store(partial_output + partial[:, None] * VALUE_DIM + value_dim[None, :], result, mask=is_stored)
        tl.store(partial_lse + partial, lse, mask=is_row)


@triton.jit
def _attend(
    q, position, top, total, mixed, keys, values, key_scales, value_scales, blocks, run_start,
    begin, end, key_end, kv_head, scale, softcap_scale, window,
    NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    HAS_WINDOW: tl.constexpr, HAS_SOFTCAP: tl.constexpr, FORMAT: tl.constexpr, IS_MASKED: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """Keys at positions [begin, end) of a run that starts at `run_start`. Without a mask every row sees all of them, and they are
    a whole number of BLOCK_N.
    """
    dim = tl.arange(0, BLOCK_D)
    value_dim = tl.arange(0, BLOCK_V)
    for start in range(begin, end, BLOCK_N):
        key = start + tl.arange(0, BLOCK_N)
        is_key = key < key_end
        offset = key - run_start
        if IS_MASKED:
            block = tl.load(blocks + offset // BLOCK_SIZE, mask=is_key, other=0)
        else:
            block = tl.load(blocks + offset // BLOCK_SIZE)
        slot = (block.to(tl.int64) * BLOCK_SIZE + offset % BLOCK_SIZE) * NUM_KV_HEADS + kv_head
        k = _load_rows(keys, slot, dim, is_key, HEAD_DIM, BLOCK_D, IS_MASKED)
        scores = tl.dot(q, tl.trans(_numbers(k, q.dtype, FORMAT)), input_precision=PRECISION)
        if FORMAT != 0:
            scores *= tl.load(key_scales + slot, mask=is_key, other=0.0)[None, :]
        if HAS_SOFTCAP:
            scores = 2.0 * tl.sigmoid(2.0 * softcap_scale * scores) - 1.0
        if IS_MASKED:
            is_visible = is_key[None, :] & (key[None, :] <= position[:, None])
            if HAS_WINDOW:
                is_visible = is_visible & (key[None, :] > position[:, None] - window)
            scores = tl.where(is_visible, scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1) * scale)
        pivot = new_top
        if IS_MASKED:  # of a row that sees nothing yet, infinity less infinity would be no number
            pivot = tl.where(new_top == float("-inf"), 0.0, new_top)
        weights = tl.exp2(scores * scale - pivot[:, None])
        kept = tl.exp2(top - pivot)
        total = total * kept + tl.sum(weights, 1)
        if FORMAT != 0:
            weights *= tl.load(value_scales + slot, mask=is_key, other=0.0)[None, :]
        v = _load_rows(values, slot, value_dim, is_key, VALUE_DIM, BLOCK_V, IS_MASKED)
        mixed = mixed * kept[:, None]
        mixed = tl.dot(weights.to(q.dtype), _numbers(v, q.dtype, FORMAT), mixed, input_precision=PRECISION)
        top = new_top
    return top, total, mixed


@triton.jit
def _load_rows(
    base, row, dim, is_row, DIM: tl.constexpr, PADDED_DIM: tl.constexpr, IS_MASKED: tl.constexpr
):
    """Rows of DIM numbers -> [rows, PADDED_DIM]. What a mask leaves out is 0 and not read: it may be no number."""
    places = base + row[:, None] * DIM + dim[None, :]
    if IS_MASKED and DIM < PADDED_DIM:
        rows = tl.load(places, mask=is_row[:, None] & (dim < DIM)[None, :], other=0)
    elif IS_MASKED:
        rows = tl.load(places, mask=is_row[:, None], other=0)
    elif DIM < PADDED_DIM:
        rows = tl.load(places, mask=(dim < DIM)[None, :], other=0)
    else:
        rows = tl.load(places)
    return rows


@triton.jit
def _numbers(stored, dtype: tl.constexpr, FORMAT: tl.constexpr):
    """Exact in any type of 16 bits and more; scales are left to scores and weights, of which there are fewer."""
    return fp8_to_float16(stored).to(dtype) if FORMAT == 2 else stored.to(dtype)


@triton.jit
def _beside_sink(result, lse, sink):
    """result [rows, dim], lse and sink [rows] -> the result where a sink takes part in the softmax, too.

    As in merge_partials, operation for operation: a query may be in one tile alone in one batch, and be merged in another.
    """
    top = tl.maximum(lse, sink)
    kept = tl.exp2((lse - top) * LOG2_E)
    total = kept + tl.exp2((sink - top) * LOG2_E)
    return result * kept[:, None] / total[:, None]
