"""Two ways to multiply with a layer's weights, in float32 on a CPU. Both lay the weights out anew, once."""

import torch

from batchpaged.kernels.cpu.product import multiply_rows, pack
from batchpaged.models.exchange import Forward

# Rows for which the BLAS library packs weights; it multiplies any number with them.
PACKED_FOR_ROWS = 256


def blas_product(weight: torch.Tensor, bias: torch.Tensor | None) -> Forward:
    """By MKL, the fastest. In which order it adds depends on the number of rows."""
    packed = torch.ops.mkl._mkl_reorder_linear_weight(weight.contiguous(), PACKED_FOR_ROWS)
    shape = torch.empty(1).expand(weight.shape)  # all that the operation asks of the weight as it was

    def forward(x: torch.Tensor) -> torch.Tensor:
        return torch.ops.mkl._mkl_linear(x, packed, shape, bias, x.numel() // x.shape[-1])

    return forward


def ordered_product(weight: torch.Tensor, bias: torch.Tensor | None) -> Forward:
    """By a kernel of ours: a row's result has the same bits whatever other rows there are."""
    panels, num_columns = pack(weight.numpy()), weight.shape[0]
    first = torch.zeros(panels.shape[0] * panels.shape[2])
    if bias is not None:
        first[:num_columns] = bias

    def forward(x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1]).contiguous()
        output = first.repeat(len(rows), 1)
        multiply_rows(rows.numpy(), panels, output.numpy())
        return output[:, :num_columns].unflatten(0, x.shape[:-1]).contiguous()

    return forward
