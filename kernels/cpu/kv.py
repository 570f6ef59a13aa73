"""Writing to paged keys [G, num_blocks, dim, block_size] and values [G, num_blocks, block_size, dim].

What is not finite is stored as 0: slots beyond a context are read with weight 0, and zero times infinity would reach
other rows.
"""

import numpy as np
from numba import prange

from batchpaged.kernels.cpu.jit import kernel

_ZERO = np.float32(0)


@kernel
def store_keys(new, keys, slots):
    """Write new [T, G, dim] to slots [T] int64 (block * block_size + offset)."""
    num_groups, _, dim, block_size = keys.shape
    for i in prange(slots.shape[0]):
        block, offset = slots[i] // block_size, slots[i] % block_size
        for group in range(num_groups):
            for d in range(dim):
                value = new[i, group, d]
                keys[group, block, d, offset] = value if np.isfinite(value) else _ZERO


@kernel
def store_values(new, values, slots):
    """Write new [T, G, dim] to slots [T] int64 (block * block_size + offset)."""
    num_groups, _, block_size, dim = values.shape
    for i in prange(slots.shape[0]):
        block, offset = slots[i] // block_size, slots[i] % block_size
        for group in range(num_groups):
            for d in range(dim):
                value = new[i, group, d]
                values[group, block, offset, d] = value if np.isfinite(value) else _ZERO


@kernel
def copy_slots(keys, values, copies):
    """Copy the first slots of blocks: copies [n, 3] int64 (source, target, number of slots).

    All sources are read before a target is written.
    """
    num_groups, _, head_dim, block_size = keys.shape
    held_keys = np.empty((copies.shape[0], num_groups, head_dim, block_size), np.float32)
    held_values = np.empty((copies.shape[0], num_groups, block_size, values.shape[3]), np.float32)
    for i in prange(copies.shape[0]):
        held_keys[i] = keys[:, copies[i, 0]]
        held_values[i] = values[:, copies[i, 0]]
    for i in prange(copies.shape[0]):
        target, num_slots = copies[i, 1], copies[i, 2]
        keys[:, target, :, :num_slots] = held_keys[i, :, :, :num_slots]
        values[:, target, :num_slots] = held_values[i, :, :num_slots]
