"""Vectors of float32 as values in compiled kernels, for the few loops that the compiler does not vectorise well by itself.

The compiler splits vectors that are wider than the machine's.
"""

import math

import llvmlite.ir as ir
import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model


_LOG2_E = 1.4426950408889634
# log(2) in two parts, the first with few digits, so that multiples of it are exact.
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
_COEFFICIENTS = tuple(float(np.float32(1 / math.factorial(n))) for n in range(6, -1, -1))  # of the Taylor series: 1.2e-7 at most


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


def _kind(width: int) -> ir.VectorType:
    return ir.VectorType(ir.FloatType(), width)


def _pointer(context, builder, array_type, array, index, kind):
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), kind.as_pointer())


def _spread(builder, value, width):
    undefined = ir.Constant(_kind(width), ir.Undefined)
    first = builder.insert_element(undefined, value, ir.Constant(ir.IntType(32), 0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), width), [0] * width)
    return builder.shuffle_vector(first, undefined, zeros)


def _is_literal(width) -> bool:
    return isinstance(width, types.IntegerLiteral)


@intrinsic(prefer_literal=True)
def load(typing_context, array, index, width):
    """`width` values from element `index`, counted flat, of a contiguous array. The width is a constant."""
    if not _is_literal(width):
        return None
    vector = Vector(width.literal_value)

    def generate(context, builder, signature, arguments):
        pointer = _pointer(context, builder, signature.args[0], *arguments[:2], _kind(vector.width))
        return builder.load(pointer, align=4)

    return vector(array, index, width), generate


@intrinsic(prefer_literal=True)
def splat(typing_context, array, index, width):
    """One value of a contiguous array, `width` times."""
    if not _is_literal(width):
        return None
    vector = Vector(width.literal_value)

    def generate(context, builder, signature, arguments):
        value = builder.load(_pointer(context, builder, signature.args[0], *arguments[:2], ir.FloatType()))
        return _spread(builder, value, vector.width)

    return vector(array, index, width), generate


@intrinsic(prefer_literal=True)
def zero(typing_context, width):
    if not _is_literal(width):
        return None
    vector = Vector(width.literal_value)

    def generate(context, builder, signature, arguments):
        return ir.Constant(_kind(vector.width), [0.0] * vector.width)

    return vector(width), generate


@intrinsic
def store(typing_context, array, index, value):
    """To element `index`, counted flat, of a contiguous array and those after it."""

    def generate(context, builder, signature, arguments):
        pointer = _pointer(context, builder, signature.args[0], *arguments[:2], _kind(value.width))
        builder.store(arguments[2], pointer, align=4)
        return context.get_dummy_value()

    return types.void(array, index, value), generate


@intrinsic
def scale(typing_context, value, factor):
    def generate(context, builder, signature, arguments):
        return builder.fmul(arguments[0], _spread(builder, arguments[1], value.width))

    return value(value, types.float32), generate


@intrinsic
def fma(typing_context, a, b, c):
    """a * b + c"""

    def generate(context, builder, signature, arguments):
        return _call_fma(builder, a.width, *arguments)

    return a(a, a, a), generate


def _call_fma(builder, width, a, b, c):
    function_type = ir.FunctionType(_kind(width), [_kind(width)] * 3)
    return builder.call(cgutils.get_or_insert_function(builder.module, function_type, f"llvm.fma.v{width}f32"), [a, b, c])


@intrinsic
def add(typing_context, a, b):
    def generate(context, builder, signature, arguments):
        return builder.fadd(*arguments)

    return a(a, a), generate


@intrinsic
def maximum(typing_context, a, b):
    def generate(context, builder, signature, arguments):
        return builder.select(builder.fcmp_ordered(">", *arguments), *arguments)

    return a(a, a), generate


def _reduce(builder, name, scalars, value, width):
    """The values of a vector made one, in any order."""
    kind = ir.FloatType()
    function_type = ir.FunctionType(kind, [kind] * len(scalars) + [_kind(width)])
    function = cgutils.get_or_insert_function(builder.module, function_type, f"llvm.vector.reduce.{name}.v{width}f32")
    return builder.call(function, [*scalars, value], fastmath=("reassoc", "nnan"))


@intrinsic
def sum_of(typing_context, value):
    def generate(context, builder, signature, arguments):
        return _reduce(builder, "fadd", [ir.Constant(ir.FloatType(), 0.0)], arguments[0], value.width)

    return types.float32(value), generate


@intrinsic
def greatest_of(typing_context, value):
    """Of a vector that holds no NaN."""

    def generate(context, builder, signature, arguments):
        return _reduce(builder, "fmax", [], arguments[0], value.width)

    return types.float32(value), generate


@intrinsic(prefer_literal=True)
def spread(typing_context, number, width):
    """A number, `width` times."""
    if not _is_literal(width):
        return None
    vector = Vector(width.literal_value)

    def generate(context, builder, signature, arguments):
        return _spread(builder, arguments[0], vector.width)

    return vector(types.float32, width), generate


@intrinsic
def exp_minus(typing_context, value, shift):
    """exp(value - shift), for values of at most `shift`."""

    def generate(context, builder, signature, arguments):
        difference = builder.fsub(arguments[0], _spread(builder, arguments[1], value.width))
        return _exp(builder, difference, _kind(value.width), value.width)

    return value(value, types.float32), generate


def _exp(builder, x, kind, width):
    """exp(x) for x <= 0 to float32 precision: 2**n * exp(r) with a polynomial for |r| <= log(2) / 2; 0 below -87."""

    def constant(value):
        return ir.Constant(kind, [value] * width)

    integers = ir.VectorType(ir.IntType(32), width)
    def fused(a, b, c):
        return _call_fma(builder, width, a, b, c)

    function_type = ir.FunctionType(kind, [kind])
    floor = cgutils.get_or_insert_function(builder.module, function_type, f"llvm.floor.v{width}f32")
    lowest = constant(-87.0)
    is_low = builder.fcmp_ordered("<", x, lowest)
    bounded = builder.select(is_low, lowest, x)
    exponent = builder.call(floor, [fused(bounded, constant(_LOG2_E), constant(0.5))])
    r = fused(exponent, constant(-_LN2_HIGH), bounded)
    r = fused(exponent, constant(-_LN2_LOW), r)
    result = constant(_COEFFICIENTS[0])
    for coefficient in _COEFFICIENTS[1:]:
        result = fused(result, r, constant(coefficient))
    bits = builder.add(builder.fptosi(exponent, integers), ir.Constant(integers, [127] * width))
    power = builder.bitcast(builder.shl(bits, ir.Constant(integers, [23] * width)), kind)
    return builder.select(is_low, constant(0.0), builder.fmul(result, power))
