"""Vectors of float32 as values in compiled kernels, for the few loops that the compiler does not vectorise well by itself.

`vectors(width)` gives the operations for one width. The compiler splits vectors that are wider than the machine's.
"""

import math
from functools import lru_cache
from types import SimpleNamespace

import llvmlite.ir as ir
import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model


_LOG2_E = 1.4426950408889634
# log(2) in two parts, the first with few digits, so that multiples of it are exact.
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
_COEFFICIENTS = tuple(float(np.float32(1 / math.factorial(n))) for n in range(7, -1, -1))  # of the Taylor series


class Vector(types.Type):
    def __init__(self, width: int) -> None:
        super().__init__(name=f"float32x{width}")
        self.width = width


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager, vector: Vector) -> None:
        super().__init__(manager, vector, ir.VectorType(ir.FloatType(), vector.width))


def widest(size: int) -> int:
    """The widest vector of which `size` values are a whole number."""
    return next(width for width in (16, 8, 4, 2, 1) if size % width == 0)


def _pointer(context, builder, array_type, array, index, kind):
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), kind.as_pointer())


@lru_cache
def vectors(width: int) -> SimpleNamespace:
    """load(array, index), store(array, index, vector), splat(array, index), zero(), scale(vector, x), add(a, b),
    maximum(a, b), fma(a, b, c) = a * b + c, exp_minus(vector, x) = exp(vector - x) for vectors of at most x.

    Indices count the elements of a contiguous array flat.
    """
    vector = Vector(width)
    kind = ir.VectorType(ir.FloatType(), width)

    def spread(builder, value):
        first = builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(ir.IntType(32), 0))
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), width), [0] * width)
        return builder.shuffle_vector(first, ir.Constant(kind, ir.Undefined), zeros)

    @intrinsic
    def load(typing_context, array, index):
        def generate(context, builder, signature, arguments):
            return builder.load(_pointer(context, builder, signature.args[0], *arguments, kind), align=4)

        return vector(array, index), generate

    @intrinsic
    def store(typing_context, array, index, value):
        def generate(context, builder, signature, arguments):
            pointer = _pointer(context, builder, signature.args[0], *arguments[:2], kind)
            builder.store(arguments[2], pointer, align=4)
            return context.get_dummy_value()

        return types.void(array, index, vector), generate

    @intrinsic
    def splat(typing_context, array, index):
        def generate(context, builder, signature, arguments):
            pointer = _pointer(context, builder, signature.args[0], *arguments, ir.FloatType())
            return spread(builder, builder.load(pointer))

        return vector(array, index), generate

    @intrinsic
    def zero(typing_context):
        def generate(context, builder, signature, arguments):
            return ir.Constant(kind, [0.0] * width)

        return vector(), generate

    @intrinsic
    def scale(typing_context, value, factor):
        def generate(context, builder, signature, arguments):
            return builder.fmul(arguments[0], spread(builder, arguments[1]))

        return vector(vector, types.float32), generate

    @intrinsic
    def fma(typing_context, a, b, c):
        def generate(context, builder, signature, arguments):
            function_type = ir.FunctionType(kind, [kind] * 3)
            function = cgutils.get_or_insert_function(builder.module, function_type, f"llvm.fma.v{width}f32")
            return builder.call(function, arguments)

        return vector(vector, vector, vector), generate

    @intrinsic
    def add(typing_context, a, b):
        def generate(context, builder, signature, arguments):
            return builder.fadd(*arguments)

        return vector(vector, vector), generate

    @intrinsic
    def maximum(typing_context, a, b):
        def generate(context, builder, signature, arguments):
            return builder.select(builder.fcmp_ordered(">", *arguments), *arguments)

        return vector(vector, vector), generate

    @intrinsic
    def exp_minus(typing_context, value, shift):
        def generate(context, builder, signature, arguments):
            return _exp(builder, builder.fsub(arguments[0], spread(builder, arguments[1])), kind, width)

        return vector(vector, types.float32), generate

    return SimpleNamespace(
        load=load, store=store, splat=splat, zero=zero, scale=scale, fma=fma, add=add, maximum=maximum, exp_minus=exp_minus
    )


def _exp(builder, x, kind, width):
    """exp(x) for x <= 0 to float32 precision: 2**n * exp(r) with a polynomial for |r| <= log(2) / 2; 0 below -87."""

    def constant(value):
        return ir.Constant(kind, [value] * width)

    integers = ir.VectorType(ir.IntType(32), width)
    function_type = ir.FunctionType(kind, [kind])
    floor = cgutils.get_or_insert_function(builder.module, function_type, f"llvm.floor.v{width}f32")
    lowest = constant(-87.0)
    is_low = builder.fcmp_ordered("<", x, lowest)
    bounded = builder.select(is_low, lowest, x)
    exponent = builder.call(floor, [builder.fadd(builder.fmul(bounded, constant(_LOG2_E)), constant(0.5))])
    r = builder.fsub(bounded, builder.fmul(exponent, constant(_LN2_HIGH)))
    r = builder.fsub(r, builder.fmul(exponent, constant(_LN2_LOW)))
    result = constant(_COEFFICIENTS[0])
    for coefficient in _COEFFICIENTS[1:]:
        result = builder.fadd(builder.fmul(result, r), constant(coefficient))
    bits = builder.add(builder.fptosi(exponent, integers), ir.Constant(integers, [127] * width))
    power = builder.bitcast(builder.shl(bits, ir.Constant(integers, [23] * width)), kind)
    return builder.select(is_low, constant(0.0), builder.fmul(result, power))
