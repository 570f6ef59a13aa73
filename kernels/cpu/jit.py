"""How all CPU kernels are compiled, and what they share."""

from collections.abc import Callable
from typing import Any

import llvmlite.binding
import llvmlite.ir as ir
import numba
import numpy as np
from numba.core import cgutils
from numba.extending import intrinsic


def _host_features() -> str:
    return llvmlite.binding.get_host_cpu_features().flatten()


# torch's OpenMP pool first: numba then runs on the very same threads, and neither waits for cores that the other spins on.
numba.config.THREADING_LAYER_PRIORITY = ["omp", "tbb", "workqueue"]

# By itself the compiler keeps to half of AVX-512, as was best on the first processors that had it.
if "+avx512f" in (numba.config.CPU_FEATURES or _host_features()):
    numba.config.CPU_FEATURES = f"{numba.config.CPU_FEATURES or _host_features()},-prefer-256-bit"

# What lets the compiler use vector instructions for sums. NaN and infinity keep their meaning.
FAST = {"reassoc", "contract", "nsz", "arcp"}


def set_num_threads(num_threads: int) -> None:
    """Threads for kernels called from this thread."""
    numba.set_num_threads(min(num_threads, numba.config.NUMBA_NUM_THREADS))


def num_threads() -> int:
    return numba.get_num_threads()


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile at the first call, with `prange` loops in parallel; the machine code is kept on disk for later runs."""
    options = {"parallel": True, "fastmath": FAST, "error_model": "numpy", "nogil": True}
    try:
        return numba.njit(**options, cache=True)(function)
    except RuntimeError:  # no folder that machine code could be written to: every process compiles for itself
        return numba.njit(**options)(function)


def function(function: Callable[..., Any]) -> Callable[..., Any]:
    """For functions called from kernels."""
    return numba.njit(fastmath=FAST, error_model="numpy")(function)


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same, for functions that have to become part of a loop before it is made into vector instructions."""
    return numba.njit(fastmath=FAST, error_model="numpy", inline="always")(function)


_f32 = np.float32


@numba.njit(fastmath=True, error_model="numpy")
def greatest(x, start, end):
    """The greatest of x[start:end], which holds no NaN: only then is there a vector instruction for it."""
    top = x[start]
    for i in range(start + 1, end):
        top = max(top, x[i])
    return top


@inlined
def exp_parts(x):
    """exp(x) = mantissa * 2**exponent, for x <= 88, to float32 precision; below -87 the exponent stays at its least.

    In two parts, because a loop over them becomes vector instructions, which a loop over math.exp does not.
    `power_of_two` gives the bits of the second one.
    """
    scaled = max(x * _f32(1.4426950408889634), _f32(-126.0))
    exponent = np.floor(scaled + _f32(0.5))
    r = (scaled - exponent) * _f32(0.6931471805599453)
    p = _f32(0.041666668) + r * (_f32(0.008333334) + r * _f32(0.0013888889))
    return _f32(1.0) + r * (_f32(1.0) + r * (_f32(0.5) + r * (_f32(0.16666667) + r * p))), exponent


@inlined
def power_of_two_bits(exponent):
    """The bits of 2**exponent as a float32, for -126 <= exponent <= 127."""
    return (np.int32(exponent) + np.int32(127)) << np.int32(23)


@intrinsic
def prefetch(typing_context, array, index):
    """Ask for the cache line that holds element `index` (counted flat) of a contiguous array."""

    def generate(context, builder, signature, arguments):
        pointer = builder.gep(context.make_array(signature.args[0])(context, builder, arguments[0]).data, [arguments[1]])
        byte_pointer, int32 = ir.IntType(8).as_pointer(), ir.IntType(32)
        function_type = ir.FunctionType(ir.VoidType(), [byte_pointer, int32, int32, int32])
        function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.prefetch.p0i8")
        read, keep, data = (ir.Constant(int32, value) for value in (0, 3, 1))
        builder.call(function, [builder.bitcast(pointer, byte_pointer), read, keep, data])
        return context.get_dummy_value()

    return numba.types.void(array, index), generate
