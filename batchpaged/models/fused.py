"""Faster modules in a loaded model, for float32 on a CPU: weights packed once, element-wise passes fused.

A module is exchanged only after its replacement has given the same result on random input, small and large, so what a
class is called does not matter. The model's own code, its structure and its parameters' names stay. Weights that were
packed are given back: what reads them past their module gets NaN, not other numbers.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from batchpaged.kernels.cpu.elementwise import rms_norm, rotate, silu_multiply
from batchpaged.models.exchange import (
    Forward,
    FusedCounts,
    Product,
    RotationKernel,
    compute_only_needed_rows,
    epsilon,
    exchange_rotation,
    free_weight,
    gated_mlps,
    gives_the_same,
    is_one_sequence,
    is_rms_norm,
    takes_one_input,
)
from batchpaged.models.products import blas_product

# Rows of an MLP's input at a time: no slower a product, and its output is still in the cache for the next step.
ROWS_PER_CHUNK = 512


def fuse(model: nn.Module, product: Product = blas_product) -> FusedCounts:
    """Exchange what can be exchanged, in place. The model must be in float32 on the CPU and ready for inference."""
    if product is blas_product and not torch.backends.mkl.is_available():
        return FusedCounts(0, 0, 0)
    with torch.inference_mode():
        mlps = [module for module in gated_mlps(model) if _fuse_mlp(module, product)]
        compute_only_needed_rows(model, mlps)
        merged = {id(layer) for mlp in mlps for layer in (mlp.gate_proj, mlp.up_proj)}
        linear = [module for module in model.modules() if type(module) is nn.Linear and id(module) not in merged]
        num_linear = sum(_pack_linear(module, product) for module in linear)
        num_norm = sum(_exchange(module, _fused_norm) for module in model.modules() if is_rms_norm(module))
        exchange_rotation(model, _ROTATION, torch.device("cpu"))
    return FusedCounts(num_linear, len(mlps), num_norm)


def _exchange(module: nn.Module, make: Callable[[nn.Module], Forward]) -> bool:
    """Whether the module now uses the replacement."""
    if not takes_one_input(module):
        return False
    replacement = make(module)
    if not gives_the_same(module, replacement):
        return False
    module.forward = replacement
    return True


def _pack_linear(module: nn.Linear, product: Product) -> bool:
    is_packed = _exchange(module, lambda module: product(module.weight, module.bias))
    if is_packed:
        free_weight(module)
    return is_packed


def _fuse_mlp(module: nn.Module, product: Product) -> bool:
    is_fused = _exchange(module, lambda module: _fused_mlp(module, product))
    if is_fused:
        free_weight(module.gate_proj)
        free_weight(module.up_proj)
    return is_fused


def _fused_mlp(module: nn.Module, product: Product) -> Forward:
    """Gate and up as one product, in chunks of rows whose values stay in the processor's cache until they are used."""
    gate, up, down = module.gate_proj, module.up_proj, module.down_proj
    biases = None if gate.bias is None else torch.cat([gate.bias, up.bias])
    gate_up = product(torch.cat([gate.weight, up.weight]), biases)

    def forward_chunk(x: torch.Tensor) -> torch.Tensor:
        both = gate_up(x)
        product = torch.empty(*x.shape[:-1], both.shape[-1] // 2)
        silu_multiply(_rows(both), _rows(product))
        return down(product)

    def forward(x: torch.Tensor) -> torch.Tensor:
        if x.shape[-2] <= ROWS_PER_CHUNK:
            return forward_chunk(x)
        return torch.cat([forward_chunk(chunk) for chunk in x.split(ROWS_PER_CHUNK, dim=-2)], dim=-2)

    return forward


def _fused_norm(module: nn.Module) -> Forward:
    weight, small = module.weight.numpy(), np.float32(epsilon(module))

    def forward(x: torch.Tensor) -> torch.Tensor:
        output = torch.empty(x.shape)
        rms_norm(_rows(x), weight, small, _rows(output))
        return output

    return forward


def _rows(x: torch.Tensor) -> np.ndarray:
    """[*, dim] -> [rows, dim]"""
    return x.reshape(-1, x.shape[-1]).numpy()


def _can_rotate(q: torch.Tensor, k: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> bool:
    return q.dtype is torch.float32 and q.device.type == "cpu" and is_one_sequence(q, k, cosine, sine)


def _rotate_both(q: torch.Tensor, k: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return _rotate(q, cosine, sine), _rotate(k, cosine, sine)


def _rotate(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """x [1, heads, T, dim] -> the same shape; tokens come first in memory, as the attention backend wants them."""
    rows = x[0].transpose(0, 1).contiguous()
    output = torch.empty_like(rows)
    rotate(rows.numpy(), cosine[0].numpy(), sine[0].numpy(), output.numpy())
    return output.transpose(0, 1)[None]


_ROTATION = RotationKernel(_rotate_both, _can_rotate)
