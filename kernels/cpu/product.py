"""Products of activations and weights whose every sum is taken in one order, whatever else is in the batch.

Libraries choose the order by the number of rows, so that a token's values depend on how many others it is computed with.
"""

import numpy as np
from numba import literally, prange

from batchpaged.kernels.cpu.jit import function, kernel
from batchpaged.kernels.cpu.panel import TILE, load_four, store_four
from batchpaged.kernels.cpu.simd import fma, splat

_WIDTH = 16
COLUMNS = 4 * _WIDTH  # of the weights in a panel, [K, COLUMNS]
_DEPTH = 128  # rows of a panel at a time: 32 KiB, which stay in the processor's first cache for all rows of the input
_ROWS = 256  # rows of the input in a task


def pack(weight: np.ndarray) -> np.ndarray:
    """[N, K] -> panels [ceil(N / COLUMNS), K, COLUMNS], the last one filled up with zeros."""
    num_columns, depth = weight.shape
    num_panels = -(-num_columns // COLUMNS)
    padded = np.zeros((num_panels * COLUMNS, depth), np.float32)
    padded[:num_columns] = weight
    return np.ascontiguousarray(padded.reshape(num_panels, COLUMNS, depth).transpose(0, 2, 1))


@kernel
def multiply_rows(x, panels, output):
    """Add x @ weight.T to `output`: x [T, K]; panels as from `pack`; output [T, num_panels * COLUMNS].

    Each sum begins with what is in `output` and goes through K from first to last, by fused multiply-adds.
    """
    num_panels, num_tasks = panels.shape[0], (x.shape[0] + _ROWS - 1) // _ROWS
    for task in prange(num_panels * num_tasks):
        panel, first = task // num_tasks, task % num_tasks * _ROWS
        end = min(first + _ROWS, x.shape[0])
        for start in range(0, x.shape[1], _DEPTH):
            for row in range(first, end, TILE):
                _add_products(x, panels, output, panel, row, end - 1, start, min(start + _DEPTH, x.shape[1]), _WIDTH)


@function
def _add_products(x, panels, output, panel, row, last, start, stop, width):
    """Four rows, of which the last is repeated where there are fewer; columns `start` to `stop` of x."""
    literally(width)
    depth, columns = x.shape[1], output.shape[1]
    row1, row2, row3 = min(row + 1, last), min(row + 2, last), min(row + 3, last)
    column = panel * 4 * width
    to0, to1, to2, to3 = row * columns + column, row1 * columns + column, row2 * columns + column, row3 * columns + column
    a0, a1, a2, a3 = load_four(output, to0, width)
    b0, b1, b2, b3 = load_four(output, to1, width)
    c0, c1, c2, c3 = load_four(output, to2, width)
    d0, d1, d2, d3 = load_four(output, to3, width)
    x0, x1, x2, x3 = row * depth, row1 * depth, row2 * depth, row3 * depth
    for k in range(start, stop):
        w0, w1, w2, w3 = load_four(panels, (panel * depth + k) * 4 * width, width)
        v = splat(x, x0 + k, width)
        a0, a1, a2, a3 = fma(v, w0, a0), fma(v, w1, a1), fma(v, w2, a2), fma(v, w3, a3)
        v = splat(x, x1 + k, width)
        b0, b1, b2, b3 = fma(v, w0, b0), fma(v, w1, b1), fma(v, w2, b2), fma(v, w3, b3)
        v = splat(x, x2 + k, width)
        c0, c1, c2, c3 = fma(v, w0, c0), fma(v, w1, c1), fma(v, w2, c2), fma(v, w3, c3)
        v = splat(x, x3 + k, width)
        d0, d1, d2, d3 = fma(v, w0, d0), fma(v, w1, d1), fma(v, w2, d2), fma(v, w3, d3)
    store_four(output, to0, a0, a1, a2, a3, width)
    store_four(output, to1, b0, b1, b2, b3, width)
    store_four(output, to2, c0, c1, c2, c3, width)
    store_four(output, to3, d0, d1, d2, d3, width)
