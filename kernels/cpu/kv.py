"""Writing to paged keys and values."""

import numpy as np
from numba import prange

from batchpaged.kernels.cpu.jit import kernel


@kernel
def store(new, cache, slots):
    """Write new [T, G, dim] into cache [G, num_slots, dim] at slots [T] int64; what is not finite becomes 0.

    Slots beyond a context are read with weight 0, and zero times infinity would reach other rows.
    """
    for i in prange(slots.shape[0]):
        slot = slots[i]
        for group in range(cache.shape[0]):
            for d in range(cache.shape[2]):
                value = new[i, group, d]
                cache[group, slot, d] = value if np.isfinite(value) else np.float32(0)


@kernel
def copy_slots(cache, sources, targets):
    """Copy slots of cache [G, num_slots, dim]; all sources are read before a target is written."""
    num_groups, _, dim = cache.shape
    held = np.empty((sources.shape[0], num_groups, dim), np.float32)
    for i in prange(sources.shape[0]):
        for group in range(num_groups):
            for d in range(dim):
                held[i, group, d] = cache[group, sources[i], d]
    for i in prange(sources.shape[0]):
        for group in range(num_groups):
            for d in range(dim):
                cache[group, targets[i], d] = held[i, group, d]
