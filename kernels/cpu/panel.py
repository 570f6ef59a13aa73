"""A panel: query rows, in tiles, that go through a run of keys and values together."""

from numba import literally

from batchpaged.kernels.cpu.jit import function
from batchpaged.kernels.cpu.simd import load, store

TILE = 4  # rows that are computed side by side with four vectors: their sums fit into the processor's registers
PANEL = 32  # rows whose scores are held at the same time, at most
SCORES = 1 << 17  # float32 scores that are held at the same time: half of a common second cache


@function
def outer_span(tiles):
    """-> first and end of the keys that any tile sees"""
    first, end = tiles[0, 0], tiles[0, 1]
    for tile in range(1, tiles.shape[0]):
        first, end = min(first, tiles[tile, 0]), max(end, tiles[tile, 1])
    return first, end


@function
def store_four(array, at, a, b, c, d, width):
    store(array, at, a)
    store(array, at + width, b)
    store(array, at + 2 * width, c)
    store(array, at + 3 * width, d)


@function
def load_four(array, at, width):
    literally(width)
    return load(array, at, width), load(array, at + width, width), load(array, at + 2 * width, width), load(
        array, at + 3 * width, width
    )
