"""Root mean square norm (Zhang and Sennrich, 2019), with the addition before it; one program for some rows."""

import triton
import triton.language as tl


@triton.jit
def rms_norm_kernel(
    x, residual, weight, output, total,
    num_rows, x_stride, residual_stride, epsilon,
    DIM: tl.constexpr, PADDED_DIM: tl.constexpr, ROWS: tl.constexpr, ADDS: tl.constexpr, HAS_UNIT_OFFSET: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    dims = tl.arange(0, PADDED_DIM)
    mask = (rows < num_rows)[:, None] & (dims < DIM)[None, :]
    values = tl.load(x + rows[:, None] * x_stride + dims[None, :], mask=mask, other=0.0)
    place = rows[:, None] * DIM + dims[None, :]
    if ADDS:
        other = tl.load(residual + rows[:, None] * residual_stride + dims[None, :], mask=mask, other=0.0)
        values = (values.to(tl.float32) + other.to(tl.float32)).to(values.dtype)  # rounded, as the model's own addition
        tl.store(total + place, values, mask=mask)
    wide = values.to(tl.float32)
    normal = wide * tl.rsqrt(tl.sum(wide * wide, 1) / DIM + epsilon)[:, None]
    factor = tl.load(weight + dims, mask=dims < DIM, other=0.0).to(tl.float32)[None, :]
    if HAS_UNIT_OFFSET:
        result = normal * (1.0 + factor)
    else:
        result = normal.to(values.dtype).to(tl.float32) * factor
    tl.store(output + place, result.to(output.dtype.element_ty), mask=mask)
