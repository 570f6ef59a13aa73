"""The middle of a gated MLP: activation(gate) * up; one program for a piece of a row."""

import triton
import triton.language as tl


@triton.jit
def gated_kernel(
    gate, up, output, gate_stride, up_stride, dim, IS_GELU: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = at < dim
    x = tl.load(gate + row * gate_stride + at, mask=mask, other=0.0).to(tl.float32)
    if IS_GELU:  # 0.5 * (1 + tanh(y)) == sigmoid(2 * y), with y = sqrt(2 / pi) * (x + 0.044715 * x ** 3)
        share = tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    else:
        share = tl.sigmoid(x)
    factor = tl.load(up + row * up_stride + at, mask=mask, other=0.0).to(tl.float32)
    activated = (x * share).to(gate.dtype.element_ty).to(tl.float32)  # rounded, as the model's own activation
    tl.store(output + row * dim + at, (activated * factor).to(output.dtype.element_ty), mask=mask)
