"""A linear layer whose every sum is taken in one order, whatever other rows there are; one program for a tile of the output.

Libraries choose tiles, and into how many parts a sum is split, by the number of rows.
"""

import triton
import triton.language as tl


# Compiled once for any number of rows: one alone would otherwise have a program of its own.
@triton.jit(do_not_specialize=["num_rows"])
def linear_kernel(
    x,  # [num_rows, K]
    weight,  # [num_columns, K]
    bias,  # [num_columns]; used where HAS_BIAS
    output,  # [num_rows, num_columns]
    num_rows,
    num_columns,
    x_stride,  # numbers from row to row, as in the two that follow
    weight_stride,
    output_stride,
    K: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    PRECISION: tl.constexpr,  # of products of float32
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,  # tiles of rows that take turns with one tile of the weight, which they then find in the GPU's cache
):
    num_row_tiles, num_column_tiles = tl.cdiv(num_rows, BLOCK_M), tl.cdiv(num_columns, BLOCK_N)
    program = tl.program_id(0)
    first_tile = program // (GROUP * num_column_tiles) * GROUP
    num_in_group = tl.minimum(num_row_tiles - first_tile, GROUP)
    place = program % (GROUP * num_column_tiles)
    rows = (first_tile + place % num_in_group).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = (place // num_in_group).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    is_row, is_column = rows < num_rows, columns < num_columns
    at = tl.arange(0, BLOCK_K)
    x_places = x + rows[:, None] * x_stride + at[None, :]
    weight_places = weight + columns[:, None] * weight_stride + at[None, :]
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, K, BLOCK_K):
        if K % BLOCK_K == 0:
            a = tl.load(x_places + start, mask=is_row[:, None], other=0.0)
            b = tl.load(weight_places + start, mask=is_column[:, None], other=0.0)
        else:
            is_there = (at < K - start)[None, :]
            a = tl.load(x_places + start, mask=is_row[:, None] & is_there, other=0.0)
            b = tl.load(weight_places + start, mask=is_column[:, None] & is_there, other=0.0)
        total = tl.dot(a, tl.trans(b), total, input_precision=PRECISION)
    if HAS_BIAS:
        total += tl.load(bias + columns, mask=is_column, other=0.0).to(tl.float32)[None, :]
    output_places = output + rows[:, None] * output_stride + columns[None, :]
    tl.store(output_places, total.to(output.dtype.element_ty), mask=is_row[:, None] & is_column[None, :])
