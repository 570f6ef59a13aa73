"""Scores of query rows with the keys of a run, and their softmax."""

import numpy as np
from numba import literally

from batchpaged.kernels.cpu.jit import function, prefetch
from batchpaged.kernels.cpu.panel import TILE, outer_span, store_four
from batchpaged.kernels.cpu.simd import add, exp_minus, fma, greatest_of, load, maximum, scale, splat, spread, store, sum_of, zero


@function
def score_panel(query, keys, blocks, places, group, tiles, scaling, scores, head_dim, block_size, width):
    """Scores of all tiles with the keys that they see, tiles[i] = (first, end), rounded up to whole chunks."""
    literally(head_dim), literally(block_size), literally(width)
    first, end = outer_span(tiles)
    step, num_vectors = 4 * width, (end + width - 1) // width
    at, ahead = np.empty(4, np.int64), np.empty(4, np.int64)
    for chunk in range(first // step * step, end, step):
        for i in range(4):
            at[i] = _key_place(keys, blocks, group, min(chunk // width + i, num_vectors - 1), block_size, width)
            ahead[i] = _key_place(keys, blocks, group, min(chunk // width + 4 + i, num_vectors - 1), block_size, width)
        turn, num_turns = 0, tiles.shape[0]  # the first four tiles share out asking memory for the next chunk
        for tile in range(tiles.shape[0]):
            if tiles[tile, 0] < chunk + step and chunk < tiles[tile, 1]:
                _score_tile(
                    query, keys, at, ahead, places, tile * TILE, chunk, scaling, turn, num_turns, scores, head_dim, block_size, width
                )
                turn += 1


@function
def _key_place(keys, blocks, group, vector, block_size, width):
    """Where the `vector`-th vector of the run's keys begins: its dimension 0, counted flat."""
    block = blocks[vector * width // block_size]
    return (group * keys.shape[1] + block) * keys.shape[2] * block_size + vector * width % block_size


@function
def _score_tile(
    query, keys, at, ahead, places, t, key, scaling, turn, num_turns, scores, head_dim, block_size, width
):
    """Scores of four query rows with four vectors of keys, from row `t` and key `key` on."""
    literally(head_dim), literally(block_size), literally(width)
    q0, q1 = places[t] * head_dim, places[t + 1] * head_dim
    q2, q3 = places[t + 2] * head_dim, places[t + 3] * head_dim
    k0, k1, k2, k3 = at[0], at[1], at[2], at[3]
    n0, n1, n2, n3 = ahead[0], ahead[1], ahead[2], ahead[3]
    n = ahead[min(turn, 3)]
    four, one = num_turns < 4, num_turns >= 4 and turn < 4
    a0, a1, a2, a3 = zero(width), zero(width), zero(width), zero(width)
    b0, b1, b2, b3 = zero(width), zero(width), zero(width), zero(width)
    c0, c1, c2, c3 = zero(width), zero(width), zero(width), zero(width)
    d0, d1, d2, d3 = zero(width), zero(width), zero(width), zero(width)
    for d in range(head_dim):
        o = d * block_size
        if one:
            prefetch(keys, n + o)
        elif four:
            prefetch(keys, n0 + o), prefetch(keys, n1 + o), prefetch(keys, n2 + o), prefetch(keys, n3 + o)
        v0, v1 = load(keys, k0 + o, width), load(keys, k1 + o, width)
        v2, v3 = load(keys, k2 + o, width), load(keys, k3 + o, width)
        x = splat(query, q0 + d, width)
        a0, a1, a2, a3 = fma(x, v0, a0), fma(x, v1, a1), fma(x, v2, a2), fma(x, v3, a3)
        x = splat(query, q1 + d, width)
        b0, b1, b2, b3 = fma(x, v0, b0), fma(x, v1, b1), fma(x, v2, b2), fma(x, v3, b3)
        x = splat(query, q2 + d, width)
        c0, c1, c2, c3 = fma(x, v0, c0), fma(x, v1, c1), fma(x, v2, c2), fma(x, v3, c3)
        x = splat(query, q3 + d, width)
        d0, d1, d2, d3 = fma(x, v0, d0), fma(x, v1, d1), fma(x, v2, d2), fma(x, v3, d3)
    row = scores.shape[1]
    to = t * row + key
    store_four(scores, to, scale(a0, scaling), scale(a1, scaling), scale(a2, scaling), scale(a3, scaling), width)
    store_four(scores, to + row, scale(b0, scaling), scale(b1, scaling), scale(b2, scaling), scale(b3, scaling), width)
    to += 2 * row
    store_four(scores, to, scale(c0, scaling), scale(c1, scaling), scale(c2, scaling), scale(c3, scaling), width)
    store_four(scores, to + row, scale(d0, scaling), scale(d1, scaling), scale(d2, scaling), scale(d3, scaling), width)


@function
def softmax(scores, first, end, start, stop, earlier, width):
    """Unnormalised, in place on scores[first:end]; the rest of scores[start:stop] becomes 0. Both are whole blocks.

    -> (maximum of the scores and `earlier`, sum of the weights)
    """
    literally(width)
    scores[start:first] = -np.inf
    scores[end:stop] = -np.inf
    best = other = spread(earlier, width)
    for key in range(start, stop - width, 2 * width):  # two chains, for one would wait for itself
        best = maximum(load(scores, key, width), best)
        other = maximum(load(scores, key + width, width), other)
    best = maximum(load(scores, stop - width, width), maximum(best, other))
    top = greatest_of(best)
    total = zero(width)
    for key in range(start, stop, width):
        weight = exp_minus(load(scores, key, width), top)
        store(scores, key, weight)
        total = add(total, weight)
    return top, sum_of(total)
