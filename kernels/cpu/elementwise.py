"""Element-wise parts of a layer, in one pass over memory."""

import numpy as np
from numba import prange

from batchpaged.kernels.cpu.jit import exp_parts, kernel, power_of_two_bits
from batchpaged.kernels.cpu.simd import load, maximum, store

_f32 = np.float32
_RUN, _WIDTH = 1024, 16


@kernel
def silu_multiply(gate_up, output):
    """output = gate / (1 + exp(-gate)) * up: gate_up [T, 2 * dim] holds both, one after the other; output [T, dim]."""
    num_rows, dim = output.shape
    for row in prange(num_rows):
        bits = np.empty(dim, np.int32)
        mantissas, powers = np.empty(dim, np.float32), bits.view(np.float32)
        for d in range(dim):
            mantissa, exponent = exp_parts(min(-gate_up[row, d], _f32(88.0)))
            bits[d] = power_of_two_bits(exponent)
            mantissas[d] = mantissa
        for d in range(dim):
            output[row, d] = gate_up[row, d] * gate_up[row, dim + d] / (_f32(1.0) + mantissas[d] * powers[d])


@kernel
def rms_norm(x, weight, epsilon, output):
    """output = x / sqrt(mean(x**2) + epsilon) * weight over the last axis (Zhang and Sennrich, 2019); x [T, dim]."""
    num_rows, dim = x.shape
    for row in prange(num_rows):
        total = _f32(0)
        for d in range(dim):
            total += x[row, d] * x[row, d]
        factor = _f32(1.0) / np.sqrt(total / _f32(dim) + epsilon)
        for d in range(dim):
            output[row, d] = x[row, d] * factor * weight[d]


@kernel
def rotate(x, cosine, sine, output):
    """Rotary position embedding (Su et al., 2021) on halves: x [T, heads, dim], cosine and sine [T, dim].

    output[d] = x[d] * cosine[d] - x[d + dim / 2] * sine[d] in the first half, and with the signs of the rotation in the second.
    """
    num_rows, num_heads, dim = x.shape
    half = dim // 2
    for row in prange(num_rows):
        for head in range(num_heads):
            for d in range(half):
                low, high = x[row, head, d], x[row, head, d + half]
                output[row, head, d] = low * cosine[row, d] - high * sine[row, d]
                output[row, head, d + half] = high * cosine[row, d + half] + low * sine[row, d + half]


@kernel
def argmax(x, output):
    """Index of the greatest value of each row, the first of equals: x [T, dim] without NaN, output [T] int64.

    In runs of `_RUN` values: vector instructions find their maximum, and only the best run is searched for its place.
    """
    num_rows, dim = x.shape
    for row in prange(num_rows):
        lanes = np.empty(_WIDTH, np.float32)
        best, best_start = x[row, 0], 0
        for start in range(0, dim, _RUN):
            end = min(start + _RUN, dim)
            top = x[row, start]
            if end - start == _RUN:
                at = row * dim + start
                a, b = load(x, at, _WIDTH), load(x, at + _WIDTH, _WIDTH)
                for d in range(at + 2 * _WIDTH, at + _RUN, 2 * _WIDTH):
                    a, b = maximum(load(x, d, _WIDTH), a), maximum(load(x, d + _WIDTH, _WIDTH), b)
                store(lanes, 0, maximum(a, b))
                top = lanes.max()
            else:
                top = x[row, start:end].max()
            if top > best:
                best, best_start = top, start
        found = best_start
        for d in range(best_start, min(best_start + _RUN, dim)):
            if x[row, d] == best:
                found = d
                break
        output[row] = found
