"""Attention of single queries over paged keys and values, and the merge of partial results by log-sum-exp."""

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numba import prange

from batchpaged.kernels.cpu.jit import exp_parts, kernel, power_of_two_bits, prefetch

_f32 = np.float32
_LINE = 16  # float32 values in a cache line


@lru_cache
def attend_rows(repeats: int, head_dim: int, value_dim: int, block_size: int) -> Callable[..., None]:
    """The kernel for these sizes, which are constants to the compiler. `repeats`: query heads for each head of the cache.

    kernel(query [T, H, head_dim], keys [G, num_blocks, block_size, head_dim], values [.., value_dim], blocks [*] int64,
    rows, block_starts, first_keys, end_keys [n] int64, scaling, output [T, H, value_dim], lse [T, H])

    Entry i: the query in row rows[i] attends to keys [first_keys[i], end_keys[i]) of the run of blocks that begins at
    blocks[block_starts[i]]; key 0 is the first slot of that block. The result is merged into `output` and `lse` (-inf
    and 0 where there is none yet). A row may be in one entry only.
    """

    @kernel
    def attend(query, keys, values, blocks, rows, block_starts, first_keys, end_keys, scaling, output, lse):
        num_groups = keys.shape[0]
        for work in prange(rows.shape[0] * num_groups):
            entry, group = work // num_groups, work % num_groups
            row, start = rows[entry], block_starts[entry]
            first, end = first_keys[entry], end_keys[entry]
            first_block, end_block = first // block_size, (end + block_size - 1) // block_size
            group_offset = group * keys.shape[1]
            scores = np.empty((repeats, end), np.float32)
            bits = scores.view(np.int32)
            for b in range(first_block, end_block):
                block = blocks[start + b]
                ahead = (group_offset + blocks[start + min(b + 1, end_block - 1)]) * (block_size * head_dim)
                for slot in range(max(first - b * block_size, 0), min(end - b * block_size, block_size)):
                    for line in range(0, head_dim, _LINE):
                        prefetch(keys, ahead + slot * head_dim + line)
                    for r in range(repeats):
                        score = _f32(0)
                        for d in range(head_dim):
                            score += query[row, group * repeats + r, d] * keys[group, block, slot, d]
                        scores[r, b * block_size + slot] = score * scaling
            result = np.empty((repeats, value_dim), np.float32)
            for r in range(repeats):
                head = group * repeats + r
                earlier = lse[row, head]
                top = earlier
                for key in range(first, end):
                    top = max(top, scores[r, key])
                total = _f32(0)
                for key in range(first, end):
                    mantissa, exponent = exp_parts(scores[r, key] - top)
                    bits[r, key] = power_of_two_bits(exponent)
                    scores[r, key] *= mantissa
                    total += scores[r, key]
                kept = _f32(np.exp(earlier - top))
                total += kept
                for key in range(first, end):
                    scores[r, key] /= total
                kept /= total
                for d in range(value_dim):
                    result[r, d] = output[row, head, d] * kept
                lse[row, head] = top + _f32(np.log(total))
            for b in range(first_block, end_block):
                block = blocks[start + b]
                ahead = (group_offset + blocks[start + min(b + 1, end_block - 1)]) * (block_size * value_dim)
                for slot in range(max(first - b * block_size, 0), min(end - b * block_size, block_size)):
                    for line in range(0, value_dim, _LINE):
                        prefetch(values, ahead + slot * value_dim + line)
                    for r in range(repeats):
                        weight = scores[r, b * block_size + slot]
                        for d in range(value_dim):
                            result[r, d] += weight * values[group, block, slot, d]
            for r in range(repeats):
                for d in range(value_dim):
                    output[row, group * repeats + r, d] = result[r, d]

    return attend


@kernel
def pack_queries(query, rows, packed):
    """Gather rows [n] of query [T, H, dim] into packed [G, n * repeats, dim], the heads of one group beside each other."""
    num_groups, _, dim = packed.shape
    repeats = query.shape[1] // num_groups
    for i in prange(rows.shape[0]):
        for head in range(query.shape[1]):
            group, place = head // repeats, i * repeats + head % repeats
            for d in range(dim):
                packed[group, place, d] = query[rows[i], head, d]


@kernel
def merge(partial, partial_lse, rows, output, lse):
    """Merge partial results [G, n * repeats, value_dim] and their log-sum-exps [G, n * repeats] into those of `rows` [n].

    output [T, H, value_dim], lse [T, H]; a row is in `rows` once at most, and its partial result covers at least one key.
    """
    num_groups, value_dim = partial.shape[0], partial.shape[2]
    repeats = partial.shape[1] // rows.shape[0]
    for i in prange(rows.shape[0]):
        for head in range(num_groups * repeats):
            group, place = head // repeats, i * repeats + head % repeats
            new, old = partial_lse[group, place], lse[rows[i], head]
            top = max(new, old)
            kept, added = np.exp(old - top), np.exp(new - top)
            total = kept + added
            kept, added = kept / total, added / total
            for d in range(value_dim):
                output[rows[i], head, d] = output[rows[i], head, d] * kept + partial[group, place, d] * added
            lse[rows[i], head] = top + np.log(total)
