"""Attention of queries to runs of paged keys and values, merged into earlier results by log-sum-exp.

A panel of query rows goes through a run in three steps: scores of all keys, softmax, weighted sum of all values. The
first and the last take a chunk of keys at a time and multiply it with one tile of rows after another, so that keys and
values come out of the processor's first cache for all rows but those of the first tile. Keys lie transposed inside
their blocks, so that one vector holds the same dimension of neighbouring keys, and no step has to add up the parts of
a vector.
"""

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numba import prange

from batchpaged.kernels.cpu.jit import function, greatest, kernel
from batchpaged.kernels.cpu.panel import PANEL, SCORES, TILE
from batchpaged.kernels.cpu.scores import score_panel, softmax
from batchpaged.kernels.cpu.simd import widest
from batchpaged.kernels.cpu.values import add_values, merge

_f32 = np.float32


@lru_cache
def attend_runs(repeats: int, head_dim: int, value_dim: int, block_size: int) -> Callable[..., None]:
    """The kernel for these sizes, which are constants to the compiler. `repeats`: query heads for each head of the cache.

    kernel(query [T, H, head_dim], keys [G, num_blocks, head_dim, block_size], values [G, num_blocks, block_size, value_dim],
    blocks, block_starts, row_starts, rows, firsts, ends, tasks, share_starts, scaling, softcap, output [T, H, value_dim],
    lse [T, H])

    Run i is the blocks from blocks[block_starts[i]] on, and its queries are rows[row_starts[i]:row_starts[i + 1]]. The
    j-th of all queries sees keys [firsts[j], ends[j]) of its run, at least one; key 0 is the first slot of its first
    block. `tasks` are the numbers run * G + group; share i, which one thread does, is
    tasks[share_starts[i]:share_starts[i + 1]]. What a query saw in earlier calls is in `output` and `lse` (0 and -inf at
    first), and this is merged into it. In one call a row may be in one run only. softcap 0: none. All integers are int64.
    """
    key_width, value_width = widest(block_size), widest(value_dim)
    overhang = 3 * key_width  # keys that the last chunk of scores may have too many

    @kernel
    def attend(
        query, keys, values, blocks, block_starts, row_starts, rows, firsts, ends, tasks, share_starts, scaling, softcap,
        output, lse,
    ):  # fmt: skip
        num_groups, num_heads = keys.shape[0], query.shape[1]
        longest = _whole_blocks(greatest(ends, 0, ends.shape[0]), block_size) + overhang
        for share in prange(share_starts.shape[0] - 1):
            memory = np.empty(min(PANEL * longest, max(SCORES, longest) + TILE * longest), np.float32)
            sums = np.empty((PANEL, value_dim), np.float32)
            factors = np.empty((PANEL, 2), np.float32)  # of what was there, of what is added
            places, seen = np.empty(PANEL, np.int64), np.empty((PANEL // TILE, 2), np.int64)
            for work in range(share_starts[share], share_starts[share + 1]):
                run, group = tasks[work] // num_groups, tasks[work] % num_groups
                run_blocks = blocks[block_starts[run] :]
                begin, end = row_starts[run], row_starts[run + 1]
                num_rows = (end - begin) * repeats
                most = _whole_blocks(greatest(ends, begin, end), block_size) + overhang
                height = (min(PANEL, max(SCORES // most, 1), num_rows) + TILE - 1) // TILE * TILE
                scores = memory[: height * most].reshape(height, most)
                for panel in range(0, num_rows, height):
                    num_own = min(height, num_rows - panel)
                    tiles = seen[: (num_own + TILE - 1) // TILE]
                    for t in range(tiles.shape[0] * TILE):  # the last tile repeats its last row
                        row, tile = min(panel + t, num_rows - 1), t // TILE
                        j = begin + row // repeats
                        places[t] = rows[j] * num_heads + group * repeats + row % repeats
                        tiles[tile, 0] = min(tiles[tile, 0], firsts[j]) if t % TILE else firsts[j]
                        tiles[tile, 1] = max(tiles[tile, 1], ends[j]) if t % TILE else ends[j]
                    score_panel(query, keys, run_blocks, places, group, tiles, scaling, scores, head_dim, block_size, key_width)
                    for t in range(num_own):
                        j = begin + (panel + t) // repeats
                        place = places[t] // num_heads, places[t] % num_heads
                        start = tiles[t // TILE, 0] // block_size * block_size
                        stop = _whole_blocks(tiles[t // TILE, 1], block_size)
                        if softcap > 0:
                            _cap(scores[t], firsts[j], ends[j], softcap)
                        top, total = softmax(scores[t], firsts[j], ends[j], start, stop, lse[place], key_width)
                        earlier = _f32(np.exp(lse[place] - top))
                        factors[t, 1] = _f32(1) / (earlier + total)
                        factors[t, 0] = earlier * factors[t, 1]
                        lse[place] = top + _f32(np.log(earlier + total))
                    add_values(scores, values, run_blocks, group, tiles, sums, value_dim, block_size, value_width)
                    for t in range(num_own):
                        merge(output, places[t] * value_dim, sums, t, factors, value_dim, value_width)

    return attend


@function
def _whole_blocks(num_keys, block_size):
    return (num_keys + block_size - 1) // block_size * block_size


@function
def _cap(scores, first, end, softcap):
    for key in range(first, end):
        scores[key] = softcap * np.tanh(scores[key] / softcap)
