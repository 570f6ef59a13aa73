"""Faster modules in a loaded model, by Triton kernels on a GPU: each becomes one pass over its input.

As in fused.py a module is exchanged only after its replacement has given the same result on random input. Both are tried in
float32 whatever the model's type, on a copy of the module: in 16 bits two formulas may be as near as rounding.
"""

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial

import torch
from torch import nn
from torch.nn import functional

from batchpaged.errors import ModelError
from batchpaged.kernels.triton.gated.launch import gated
from batchpaged.kernels.triton.linear.launch import linear
from batchpaged.kernels.triton.rms_norm.launch import MAX_DIM, rms_norm
from batchpaged.kernels.triton.rope_store.launch import Angles
from batchpaged.kernels.triton.rotate.launch import rotate
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

Make = Callable[[nn.Module], Forward]


def library_product(weight: torch.Tensor, bias: torch.Tensor | None) -> Forward:
    """By cuBLAS, the fastest. In which order it adds depends on the number of rows."""
    return partial(functional.linear, weight=weight, bias=bias)


def ordered_product(weight: torch.Tensor, bias: torch.Tensor | None) -> Forward:
    """By a kernel of ours: a row's result has the same bits whatever other rows there are."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        return linear(x.reshape(-1, x.shape[-1]), weight, bias).unflatten(0, x.shape[:-1])

    return forward


def fuse_triton(model: nn.Module, product: Product = library_product) -> FusedCounts:
    """Exchange what can be exchanged, in place. The model must be on its device and ready for inference."""
    with torch.inference_mode():
        mlps = [module for module in gated_mlps(model) if _fuse_mlp(module, product)]
        compute_only_needed_rows(model, mlps)
        norms = [module for module in model.modules() if is_rms_norm(module) and module.weight.shape[0] <= MAX_DIM]
        num_norm = sum(_exchange(module, (_norm, _norm_with_offset)) for module in norms)
        device = next(model.parameters()).device
        exchange_rotation(model, _rotation(device.type), device)
    return FusedCounts(0, len(mlps), num_norm)


def make_batch_invariant(model: nn.Module) -> FusedCounts:
    """Exchange all products, and what `fuse_triton` does: torch's own norms add in an order that depends on the number of rows, too.

    Raises ModelError where a weight is left that the model multiplies with in another way.
    """
    counts = fuse_triton(model, ordered_product)
    linear = [module for module in model.modules() if type(module) is nn.Linear and not _is_given_back(module.weight)]
    left = _products_left(model)
    if left is not None:
        raise ModelError(
            f"engine.batch_invariant: {left} of this model is no linear layer, and may give a prompt other bits alone than beside "
            "others; set it to false"
        )
    for module in linear:
        module.forward = ordered_product(module.weight, module.bias)
    return replace(counts, num_linear=len(linear))


def _is_given_back(weight: torch.Tensor) -> bool:
    """By `free_weight`: one number stands for all."""
    return weight.stride() == (0, 0)


def _products_left(model: nn.Module) -> str | None:
    """The first weight that is neither a linear layer's nor looked up row by row."""
    for name, module in model.named_modules():
        is_safe = type(module) is nn.Linear or isinstance(module, nn.Embedding)
        for own, weight in () if is_safe else module.named_parameters(recurse=False):
            if weight.ndim > 1:
                return f"{name}.{own}"
    return None


def _exchange(module: nn.Module, candidates: tuple[Make, ...]) -> bool:
    """Whether the module now uses one of the replacements."""
    if not takes_one_input(module):
        return False
    twin = copy.deepcopy(module).float()
    make = next((make for make in candidates if gives_the_same(twin, make(twin))), None)
    if make is not None:
        module.forward = make(module)
    return make is not None


def _fuse_mlp(module: nn.Module, product: Product) -> bool:
    candidates = (partial(_mlp, product=product, activation=activation) for activation in ("silu", "gelu_tanh"))
    is_fused = _exchange(module, tuple(candidates))
    if is_fused:
        free_weight(module.gate_proj)
        free_weight(module.up_proj)
    return is_fused


def _mlp(module: nn.Module, product: Product, activation: str) -> Forward:
    """Gate and up as one product."""
    gate, up, down = module.gate_proj, module.up_proj, module.down_proj
    bias = None if gate.bias is None else torch.cat([gate.bias, up.bias])
    gate_up = product(torch.cat([gate.weight, up.weight]), bias)

    def forward(x: torch.Tensor) -> torch.Tensor:
        both = gate_up(x)
        return down(gated(*both.flatten(0, -2).chunk(2, dim=-1), activation).unflatten(0, x.shape[:-1]))

    return forward


def _norm(module: nn.Module, has_unit_offset: bool = False) -> Forward:
    weight, small = module.weight, epsilon(module)

    def forward(x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1])
        return rms_norm(rows, weight, small, has_unit_offset=has_unit_offset)[0].view(x.shape)

    return forward


_norm_with_offset = partial(_norm, has_unit_offset=True)


@lru_cache
def _rotation(device_type: str) -> RotationKernel:
    def can_rotate(q: torch.Tensor, k: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> bool:
        is_here = q.device.type == device_type and q.stride(3) == k.stride(3) == 1
        return is_here and is_one_sequence(q, k, cosine, sine)

    return RotationKernel(_rotate, can_rotate)


def _rotate(q: torch.Tensor, k: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """[1, heads, T, dim] -> the same shapes; tokens come first in memory, as the attention backend wants them."""
    angles = Angles(cosine[0].contiguous(), sine[0].contiguous())
    turned = rotate(q[0].transpose(0, 1), k[0].transpose(0, 1), angles)
    return tuple(x.transpose(0, 1)[None] for x in turned)
