"""Attention of queries to runs of paged keys and values, merged into earlier results by log-sum-exp.

A tile of query rows goes through a run in three steps: scores of all keys, softmax, weighted sum of all values. Keys
lie transposed inside their blocks, so that one vector holds the same dimension of neighbouring keys, and no step has
to add up the parts of a vector.
"""

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numba import literally, prange

from batchpaged.kernels.cpu.jit import function, greatest, kernel, prefetch
from batchpaged.kernels.cpu.simd import add, exp_minus, fma, load, maximum, scale, splat, store, widest, zero

_f32 = np.float32
_LINE = 16  # float32 values in a cache line
_AHEAD = 4  # blocks: how far ahead memory is asked for keys and values
_TILE = 4  # query rows that are computed side by side: their sums fit into the processor's registers


@lru_cache
def attend_runs(repeats: int, head_dim: int, value_dim: int, block_size: int) -> Callable[..., None]:
    """The kernel for these sizes, which are constants to the compiler. `repeats`: query heads for each head of the cache.

    kernel(query [T, H, head_dim], keys [G, num_blocks, head_dim, block_size], values [G, num_blocks, block_size, value_dim],
    blocks, block_starts, row_starts, rows, firsts, ends, tasks, scaling, softcap, output [T, H, value_dim], lse [T, H])

    Run i is the blocks from blocks[block_starts[i]] on, and its queries are rows[row_starts[i]:row_starts[i + 1]]. The
    j-th of all queries sees keys [firsts[j], ends[j]) of its run, at least one; key 0 is the first slot of its first
    block. `tasks` are the numbers run * G + group, in the order in which equal parts of it are given to threads. What a
    query saw in earlier calls is in `output` and `lse` (0 and -inf at first), and this is merged into it. In one call a
    row may be in one run only. softcap 0: none. All integers are int64.
    """
    key_width, value_width = widest(block_size), widest(value_dim)

    @kernel
    def attend(
        query, keys, values, blocks, block_starts, row_starts, rows, firsts, ends, tasks, scaling, softcap, output, lse
    ):
        num_groups, num_heads = keys.shape[0], query.shape[1]
        for work in prange(tasks.shape[0]):
            run, group = tasks[work] // num_groups, tasks[work] % num_groups
            run_blocks = blocks[block_starts[run] :]
            begin, num_rows = row_starts[run], (row_starts[run + 1] - row_starts[run]) * repeats
            longest = greatest(ends, begin, row_starts[run + 1])
            most = ((longest + block_size - 1) // block_size + 1) * block_size  # one block to spare
            scores = np.empty((_TILE, most), np.float32)
            places, factors = np.empty(_TILE, np.int64), np.empty(_TILE, np.float32)
            for tile in range(0, num_rows, _TILE):
                first, end = longest, 0
                for t in range(_TILE):  # the last tile repeats its last row
                    row = min(tile + t, num_rows - 1)
                    first, end = min(first, firsts[begin + row // repeats]), max(end, ends[begin + row // repeats])
                    places[t] = rows[begin + row // repeats] * num_heads + group * repeats + row % repeats
                first_block, end_block = first // block_size, (end + block_size - 1) // block_size
                span = first_block, end_block
                is_first = tile == 0
                if is_first:
                    _prefetch_values(values, run_blocks, group, span)
                _score_tile(
                    query, keys, run_blocks, places, group, span, scaling, is_first, scores, head_dim, block_size, key_width
                )
                num_own = min(_TILE, num_rows - tile)
                for t in range(num_own):
                    j = begin + (tile + t) // repeats
                    place = places[t] // num_heads, places[t] % num_heads
                    if softcap > 0:
                        for key in range(firsts[j], ends[j]):
                            scores[t, key] = softcap * np.tanh(scores[t, key] / softcap)
                    start, stop = first_block * block_size, end_block * block_size
                    top, total = _softmax(scores[t], firsts[j], ends[j], start, stop, lse[place], key_width)
                    earlier = _f32(np.exp(lse[place] - top))
                    factors[t] = _f32(1) / (earlier + total)
                    lse[place] = top + _f32(np.log(earlier + total))
                    for d in range(value_dim):
                        output[place[0], place[1], d] *= earlier * factors[t]
                _add_values(
                    scores, values, run_blocks, places, group, span, factors, num_own, is_first, output,
                    value_dim, block_size, value_width,
                )  # fmt: skip

    return attend


@function
def _prefetch_values(values, blocks, group, span):
    """The first blocks of a run, which are wanted as soon as its scores are known."""
    block = values.shape[2] * values.shape[3]
    for b in range(span[0], min(span[0] + _AHEAD, span[1])):
        for line in range(0, block, _LINE):
            prefetch(values, (group * values.shape[1] + blocks[b]) * block + line)


@function
def _softmax(scores, first, end, start, stop, earlier, width):
    """Unnormalised, in place on scores[first:end]; the rest of scores[start:stop] becomes 0. Both are whole blocks.

    -> (maximum of the scores and `earlier`, sum of the weights)
    """
    literally(width)
    scores[start:first] = -np.inf
    scores[end:stop] = -np.inf
    lanes = np.empty(width, np.float32)
    lanes[:] = earlier
    best = load(lanes, 0, width)
    for key in range(start, stop, width):
        best = maximum(load(scores, key, width), best)
    store(lanes, 0, best)
    top = lanes.max()
    total = zero(width)
    for key in range(start, stop, width):
        weight = exp_minus(load(scores, key, width), top)
        store(scores, key, weight)
        total = add(total, weight)
    store(lanes, 0, total)
    return top, lanes.sum()


@function
def _score_tile(query, keys, blocks, places, group, span, scaling, is_first, scores, head_dim, block_size, width):
    """Scores of four query rows with the keys of two blocks at a time: eight sums in flight hide the processor's latency."""
    literally(head_dim), literally(block_size), literally(width)
    first_block, end_block = span
    block = head_dim * block_size
    base, row = group * keys.shape[1], scores.shape[1]
    q0, q1, q2, q3 = places[0] * head_dim, places[1] * head_dim, places[2] * head_dim, places[3] * head_dim
    for b in range(first_block, end_block, 2):
        here = (base + blocks[b]) * block
        beside = (base + blocks[min(b + 1, end_block - 1)]) * block
        if is_first:  # later tiles find the keys in the processor's cache
            for ahead in range(b + _AHEAD, min(b + _AHEAD + 2, end_block)):
                for line in range(0, block, _LINE):
                    prefetch(keys, (base + blocks[ahead]) * block + line)
        for slot in range(0, block_size, width):
            a0, a1, a2, a3 = zero(width), zero(width), zero(width), zero(width)
            b0, b1, b2, b3 = zero(width), zero(width), zero(width), zero(width)
            for d in range(head_dim):
                at = d * block_size + slot
                key, other = load(keys, here + at, width), load(keys, beside + at, width)
                x = splat(query, q0 + d, width)
                a0, b0 = fma(x, key, a0), fma(x, other, b0)
                x = splat(query, q1 + d, width)
                a1, b1 = fma(x, key, a1), fma(x, other, b1)
                x = splat(query, q2 + d, width)
                a2, b2 = fma(x, key, a2), fma(x, other, b2)
                x = splat(query, q3 + d, width)
                a3, b3 = fma(x, key, a3), fma(x, other, b3)
            at = b * block_size + slot
            store(scores, at, scale(a0, scaling))
            store(scores, at + row, scale(a1, scaling))
            store(scores, at + 2 * row, scale(a2, scaling))
            store(scores, at + 3 * row, scale(a3, scaling))
            at += block_size
            store(scores, at, scale(b0, scaling))
            store(scores, at + row, scale(b1, scaling))
            store(scores, at + 2 * row, scale(b2, scaling))
            store(scores, at + 3 * row, scale(b3, scaling))


@function
def _add_four(output, at, a, b, c, d, factors, t, width):
    literally(width)
    factor = splat(factors, t, width)
    store(output, at, fma(a, factor, load(output, at, width)))
    store(output, at + width, fma(b, factor, load(output, at + width, width)))
    store(output, at + 2 * width, fma(c, factor, load(output, at + 2 * width, width)))
    store(output, at + 3 * width, fma(d, factor, load(output, at + 3 * width, width)))


@function
def _add_values(
    scores, values, blocks, places, group, span, factors, num_own, is_first, output, value_dim, block_size, width
):
    """Add the values of all keys, weighted with the scores and the row's factor, to the rows of `output`."""
    literally(value_dim), literally(block_size), literally(width)
    first_block, end_block = span
    block, step = value_dim * block_size, 4 * width
    num_by_four = value_dim // step * step  # columns in groups of four vectors; the rest one by one
    base, row = group * values.shape[1], scores.shape[1]
    for column in range(0, num_by_four, step):
        a0, a1, a2, a3 = zero(width), zero(width), zero(width), zero(width)
        b0, b1, b2, b3 = zero(width), zero(width), zero(width), zero(width)
        c0, c1, c2, c3 = zero(width), zero(width), zero(width), zero(width)
        d0, d1, d2, d3 = zero(width), zero(width), zero(width), zero(width)
        for b in range(first_block, end_block):
            here, at = (base + blocks[b]) * block + column, b * block_size
            if is_first and b + _AHEAD < end_block:
                for line in range(0, block, _LINE):
                    prefetch(values, (base + blocks[b + _AHEAD]) * block + line)
            for slot in range(block_size):
                v0, v1 = load(values, here, width), load(values, here + width, width)
                v2, v3 = load(values, here + 2 * width, width), load(values, here + 3 * width, width)
                x = splat(scores, at + slot, width)
                a0, a1, a2, a3 = fma(x, v0, a0), fma(x, v1, a1), fma(x, v2, a2), fma(x, v3, a3)
                x = splat(scores, at + slot + row, width)
                b0, b1, b2, b3 = fma(x, v0, b0), fma(x, v1, b1), fma(x, v2, b2), fma(x, v3, b3)
                x = splat(scores, at + slot + 2 * row, width)
                c0, c1, c2, c3 = fma(x, v0, c0), fma(x, v1, c1), fma(x, v2, c2), fma(x, v3, c3)
                x = splat(scores, at + slot + 3 * row, width)
                d0, d1, d2, d3 = fma(x, v0, d0), fma(x, v1, d1), fma(x, v2, d2), fma(x, v3, d3)
                here += value_dim
        _add_four(output, places[0] * value_dim + column, a0, a1, a2, a3, factors, 0, width)
        if num_own > 1:
            _add_four(output, places[1] * value_dim + column, b0, b1, b2, b3, factors, 1, width)
        if num_own > 2:
            _add_four(output, places[2] * value_dim + column, c0, c1, c2, c3, factors, 2, width)
        if num_own > 3:
            _add_four(output, places[3] * value_dim + column, d0, d1, d2, d3, factors, 3, width)
    for column in range(num_by_four, value_dim, width):
        for t in range(num_own):
            total = zero(width)
            for b in range(first_block, end_block):
                here = (base + blocks[b]) * block + column
                for slot in range(block_size):
                    x = splat(scores, t * row + b * block_size + slot, width)
                    total = fma(x, load(values, here + slot * value_dim, width), total)
            at = places[t] * value_dim + column
            store(output, at, fma(total, splat(factors, t, width), load(output, at, width)))
