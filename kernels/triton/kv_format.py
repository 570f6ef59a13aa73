"""How numbers lie in the KV cache: as they are, or in 8 bits with one float32 scale for each slot and head.

number = stored * scale; the greatest magnitude of a slot and head is stored as the greatest that the type has.
"""

import torch
import triton
import triton.language as tl

PLAIN, INT8, FP8 = 0, 1, 2
FORMATS = {torch.int8: INT8, torch.float8_e4m3fn: FP8}
_INT8: tl.constexpr = tl.constexpr(INT8)
_FP8: tl.constexpr = tl.constexpr(FP8)


def cache_format(cache: torch.Tensor) -> int:
    return FORMATS.get(cache.dtype, PLAIN)


def kernel_view(cache: torch.Tensor) -> torch.Tensor:
    """float8 as bytes: not every GPU knows the type, all know the arithmetic."""
    return cache.view(torch.uint8) if cache.dtype is torch.float8_e4m3fn else cache


@triton.jit
def finite(x):
    """What is not finite becomes 0: slots beyond a context are read with weight 0, and 0 * infinity is NaN."""
    return tl.where(tl.abs(x.to(tl.float32)) < float("inf"), x, tl.zeros_like(x))


@triton.jit
def quantise(x, FORMAT: tl.constexpr):
    """x [ROWS, DIM] float32, finite -> stored [ROWS, DIM], int8 or the bytes of float8 e4m3; scale [ROWS] float32."""
    greatest = 127.0 if FORMAT == _INT8 else 448.0
    scale = tl.maximum(tl.max(tl.abs(x), 1), 1e-30) / greatest  # a row of zeros has a scale, too
    scaled = x / scale[:, None]
    if FORMAT == _INT8:
        stored = tl.floor(tl.clamp(scaled, -127.0, 127.0) + 0.5).to(tl.int8)
    else:
        stored = float_to_fp8(tl.clamp(scaled, -448.0, 448.0))
    return stored, scale


@triton.jit
def float_to_fp8(x):
    """float32 in [-448, 448] -> the nearest float8 e4m3, ties to even, as uint8.

    Rounded to 3 bits of mantissa in float32, then moved through float16, which has the same fields at other widths.
    """
    magnitude = tl.abs(x)
    bits = magnitude.to(tl.uint32, bitcast=True)
    rounded = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) << 20
    normal = rounded.to(tl.float32, bitcast=True)
    subnormal = (magnitude + 16384.0) - 16384.0  # to a multiple of 2 ** -9
    nearest = tl.where(magnitude < 0.015625, subnormal, normal)
    half = (nearest * 0.00390625).to(tl.float16).to(tl.uint16, bitcast=True)  # * 2 ** -8: the exponents' biases differ by 8
    sign = tl.where(x < 0, 128, 0).to(tl.uint16)
    return ((half >> 7) | sign).to(tl.uint8)


@triton.jit
def fp8_to_float16(stored):
    """uint8, the bytes of float8 e4m3 without NaN -> float16, exactly, on any GPU."""
    wide = stored.to(tl.uint16)
    half = (((wide & 0x80) << 8) | ((wide & 0x7F) << 7)).to(tl.float16, bitcast=True)
    return half * 256.0


@triton.jit
def store_rows(x, cache, scales, block, offset, heads, kept, strides, scale_strides, DIM: tl.constexpr, FORMAT: tl.constexpr):
    """Write one token's x [HEADS, padded DIM] float32 to its slot.

    cache [num_blocks, block_size, num_kv_heads, DIM] with `strides` of its first three dimensions; scales likewise, unless the
    cache is plain. kept [HEADS]: which heads there are.
    """
    dims = tl.arange(0, x.shape[1])
    place = cache + block * strides[0] + offset * strides[1] + heads[:, None] * strides[2] + dims[None, :]
    mask = kept[:, None] & (dims < DIM)[None, :]
    if FORMAT == 0:
        tl.store(place, finite(x.to(cache.dtype.element_ty)), mask=mask)
    else:
        stored, scale = quantise(finite(x), FORMAT)
        tl.store(place, stored, mask=mask)
        tl.store(scales + block * scale_strides[0] + offset * scale_strides[1] + heads * scale_strides[2], scale, mask=kept)
