"""Weighted sums of the values of a run."""

import numpy as np
from numba import literally

from batchpaged.kernels.cpu.jit import function, prefetch
from batchpaged.kernels.cpu.panel import TILE, load_four, outer_span, store_four
from batchpaged.kernels.cpu.simd import add, fma, load, scale, splat, store

_CHUNK = 64  # keys whose values are added for all rows of a panel, one tile after another


@function
def add_values(weights, values, blocks, group, tiles, sums, value_dim, block_size, width):
    """`sums` [rows, value_dim] of the values of the keys that each tile sees, with their weights."""
    literally(value_dim), literally(block_size), literally(width)
    sums[: tiles.shape[0] * TILE] = np.float32(0)
    first, end = outer_span(tiles)
    step, num_blocks = 4 * width, max(_CHUNK // block_size, 1)
    num_by_four = value_dim // step * step  # columns in groups of four vectors; the rest one by one
    first_block, end_block = first // block_size, (end + block_size - 1) // block_size
    for column in range(0, num_by_four, step):
        for block in range(first_block, end_block, num_blocks):
            turn = 0  # as in score_panel
            for tile in range(tiles.shape[0]):
                start, stop = max(block, tiles[tile, 0] // block_size), min((block + num_blocks) * block_size, tiles[tile, 1])
                if start * block_size < stop:
                    _add_tile(
                        weights, values, blocks, group, tile * TILE, start, stop, end, column, turn, tiles.shape[0], sums,
                        value_dim, block_size, width,
                    )  # fmt: skip
                    turn += 1
    for column in range(num_by_four, value_dim, width):
        for tile in range(tiles.shape[0]):
            for t in range(tile * TILE, (tile + 1) * TILE):
                _add_column(
                    weights, values, blocks, group, t, tiles[tile, 0] // block_size, tiles[tile, 1], column, sums,
                    value_dim, block_size, width,
                )  # fmt: skip


@function
def _value_place(values, blocks, group, block, value_dim, block_size):
    return (group * values.shape[1] + blocks[block]) * block_size * value_dim


@function
def _add_tile(
    weights, values, blocks, group, t, start, stop, end, column, turn, num_turns, sums, value_dim, block_size, width
):
    """Four rows and four vectors of columns: the values from block `start` up to key `stop`."""
    literally(value_dim), literally(block_size), literally(width)
    row = weights.shape[1]
    to = t * value_dim + column
    a0, a1, a2, a3 = load_four(sums, to, width)
    b0, b1, b2, b3 = load_four(sums, to + value_dim, width)
    c0, c1, c2, c3 = load_four(sums, to + 2 * value_dim, width)
    d0, d1, d2, d3 = load_four(sums, to + 3 * value_dim, width)
    num_ahead = max(_CHUNK // block_size, 1)
    for b in range(start, (stop + block_size - 1) // block_size):
        here = _value_place(values, blocks, group, b, value_dim, block_size) + column
        at, num_slots = t * row + b * block_size, min(block_size, stop - b * block_size)
        is_wanted = (b + num_ahead) * block_size < end and turn < 4
        ahead = here
        if is_wanted:
            ahead = _value_place(values, blocks, group, b + num_ahead, value_dim, block_size) + column
        for slot in range(num_slots):
            o = here + slot * value_dim
            if is_wanted:
                if num_turns >= 4:
                    prefetch(values, ahead + slot * value_dim + turn * 16)
                elif turn == 0:
                    for line in range(0, 4 * width, 16):
                        prefetch(values, ahead + slot * value_dim + line)
            v0, v1, v2, v3 = load_four(values, o, width)
            x = splat(weights, at + slot, width)
            a0, a1, a2, a3 = fma(x, v0, a0), fma(x, v1, a1), fma(x, v2, a2), fma(x, v3, a3)
            x = splat(weights, at + slot + row, width)
            b0, b1, b2, b3 = fma(x, v0, b0), fma(x, v1, b1), fma(x, v2, b2), fma(x, v3, b3)
            x = splat(weights, at + slot + 2 * row, width)
            c0, c1, c2, c3 = fma(x, v0, c0), fma(x, v1, c1), fma(x, v2, c2), fma(x, v3, c3)
            x = splat(weights, at + slot + 3 * row, width)
            d0, d1, d2, d3 = fma(x, v0, d0), fma(x, v1, d1), fma(x, v2, d2), fma(x, v3, d3)
    store_four(sums, to, a0, a1, a2, a3, width)
    store_four(sums, to + value_dim, b0, b1, b2, b3, width)
    store_four(sums, to + 2 * value_dim, c0, c1, c2, c3, width)
    store_four(sums, to + 3 * value_dim, d0, d1, d2, d3, width)


@function
def _add_column(weights, values, blocks, group, t, start, stop, column, sums, value_dim, block_size, width):
    """One row and one vector of columns: the values from block `start` up to key `stop`."""
    literally(value_dim), literally(block_size), literally(width)
    total = load(sums, t * value_dim + column, width)
    for b in range(start, (stop + block_size - 1) // block_size):
        here = _value_place(values, blocks, group, b, value_dim, block_size) + column
        at = t * weights.shape[1] + b * block_size
        for slot in range(min(block_size, stop - b * block_size)):
            total = fma(splat(weights, at + slot, width), load(values, here + slot * value_dim, width), total)
    store(sums, t * value_dim + column, total)


@function
def merge(output, at, sums, t, factors, value_dim, width):
    """Row t of the sums into the row of `output` from element `at` on, each times its factor."""
    literally(value_dim), literally(width)
    for d in range(0, value_dim, width):
        earlier = scale(load(output, at + d, width), factors[t, 0])
        store(output, at + d, add(earlier, scale(load(sums, t * value_dim + d, width), factors[t, 1])))
