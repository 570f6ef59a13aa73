"""Faster modules in a loaded model, for float32 on a CPU: weights packed once, element-wise passes fused.

A module is exchanged only after its replacement has given the same result on random input, small and large, so what a
class is called does not matter. The model's own code, its structure and its parameters' names stay. Weights that were
packed are given back: what reads them past their module gets NaN, not other numbers.
"""

import inspect
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from batchpaged.kernels.cpu.elementwise import rms_norm, rotate, silu_multiply
from batchpaged.models.needed_rows import needed_rows
from batchpaged.models.products import Forward, Product, blas_product

# The order of summation differs from the original's, nothing else; a wrong formula is off by much more.
TOLERANCE = 1e-4
# Of the rows of test input. Large ones reach bounds that a formula may have, small ones show what is added to a sum.
TEST_SCALES = (0.01, 0.1, 1.0, 10.0, 1000.0)
# Rows of an MLP's input at a time: no slower a product, and its output is still in the cache for the next step.
ROWS_PER_CHUNK = 512

Rotation = Callable[..., tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class FusedCounts:
    """Modules exchanged."""

    num_linear: int
    num_mlp: int
    num_norm: int


def fuse(model: nn.Module, product: Product = blas_product) -> FusedCounts:
    """Exchange what can be exchanged, in place. The model must be in float32 on the CPU and ready for inference."""
    if product is blas_product and not torch.backends.mkl.is_available():
        return FusedCounts(0, 0, 0)
    owners = Counter(id(child) for module in model.modules() for child in module.children())
    with torch.inference_mode():
        mlps = [module for module in model.modules() if _is_gated_mlp(module, owners) and _fuse_mlp(module, product)]
        _compute_only_needed_rows(model, mlps)
        merged = {id(layer) for mlp in mlps for layer in (mlp.gate_proj, mlp.up_proj)}
        linear = [module for module in model.modules() if type(module) is nn.Linear and id(module) not in merged]
        num_linear = sum(_pack_linear(module, product) for module in linear)
        num_norm = sum(_exchange(module, _fused_norm) for module in model.modules() if _is_rms_norm(module))
        _fuse_rotation(model)
    return FusedCounts(num_linear, len(mlps), num_norm)


def _exchange(module: nn.Module, make: Callable[[nn.Module], Forward]) -> bool:
    """Whether the module now uses the replacement."""
    if len(inspect.signature(module.forward).parameters) != 1:  # it may be called with more than its input
        return False
    original, replacement = module.forward, make(module)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, len(TEST_SCALES), _input_size(module), generator=generator) * torch.tensor(TEST_SCALES)[:, None]
    if not _is_same(replacement(x), original(x)):
        return False
    module.forward = replacement
    return True


def _is_same(result: torch.Tensor, expected: torch.Tensor) -> bool:
    """Row by row, beside the row's greatest value."""
    if result.shape != expected.shape:
        return False
    errors, scales = (result - expected).abs().amax(-1), expected.abs().amax(-1)
    return bool((errors <= TOLERANCE * scales.clamp_min(1e-12)).all())


def _input_size(module: nn.Module) -> int:
    if isinstance(module, nn.Linear):
        return module.in_features
    return module.weight.shape[0] if _is_rms_norm(module) else module.gate_proj.in_features


# --- linear layers ---


def _pack_linear(module: nn.Linear, product: Product) -> bool:
    is_packed = _exchange(module, lambda module: product(module.weight, module.bias))
    if is_packed:
        _free_weight(module)
    return is_packed


def _free_weight(module: nn.Linear) -> None:
    """Give back what nobody else holds; a tied embedding does. Shape and type can still be asked for.

    Not by a tensor on torch's meta device: MKL's products read that as if it had memory.
    """
    module.weight = nn.Parameter(torch.full((1,), float("nan")).expand(module.weight.shape), requires_grad=False)


# --- gated MLPs ---


def _fuse_mlp(module: nn.Module, product: Product) -> bool:
    is_fused = _exchange(module, lambda module: _fused_mlp(module, product))
    if is_fused:
        _free_weight(module.gate_proj)
        _free_weight(module.up_proj)
    return is_fused


def _is_gated_mlp(module: nn.Module, owners: Counter[int]) -> bool:
    """down(act(gate(x)) * up(x)), as in most models since Llama, of layers that are in no other module."""
    layers = [getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
    is_complete = all(type(layer) is nn.Linear for layer in layers) and hasattr(module, "act_fn")
    is_alone = all(owners[id(layer)] == 1 for layer in layers)
    return is_complete and is_alone and (layers[0].bias is None) == (layers[1].bias is None)


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


def _compute_only_needed_rows(model: nn.Module, mlps: list[nn.Module]) -> None:
    """Nothing mixes tokens after the last layer's attention: its MLP is computed where logits are wanted, else it is 0."""
    num_layers = getattr(getattr(model, "config", None), "num_hidden_layers", 0)
    names = {module: name for name, module in model.named_modules()}
    if mlps and names[mlps[-1]].endswith(f"layers.{num_layers - 1}.mlp"):
        mlps[-1].forward = _where_needed(mlps[-1].forward)


def _where_needed(forward: Forward) -> Forward:
    def forward_needed(x: torch.Tensor) -> torch.Tensor:
        rows = needed_rows()
        if rows is None or len(rows) == x.shape[-2]:
            return forward(x)
        output = torch.zeros_like(x)
        output[..., rows, :] = forward(x[..., rows, :])
        return output

    return forward_needed


# --- norms ---


def _is_rms_norm(module: nn.Module) -> bool:
    weight = getattr(module, "weight", None)
    is_alone = len(list(module.parameters(recurse=False))) == 1 and not list(module.children())
    return is_alone and isinstance(weight, nn.Parameter) and weight.ndim == 1 and _epsilon(module) is not None


def _epsilon(module: nn.Module) -> float | None:
    found = (getattr(module, name, None) for name in ("variance_epsilon", "eps"))
    return next((value for value in found if isinstance(value, float)), None)


def _fused_norm(module: nn.Module) -> Forward:
    weight, epsilon = module.weight.numpy(), np.float32(_epsilon(module))

    def forward(x: torch.Tensor) -> torch.Tensor:
        output = torch.empty(x.shape)
        rms_norm(_rows(x), weight, epsilon, _rows(output))
        return output

    return forward


def _rows(x: torch.Tensor) -> np.ndarray:
    """[*, dim] -> [rows, dim]"""
    return x.reshape(-1, x.shape[-1]).numpy()


# --- rotary position embedding ---


def _fuse_rotation(model: nn.Module) -> None:
    """Exchange the function with which transformers' attention modules rotate queries and keys.

    It belongs to the file of the model's class. Calls in training, on other devices or in other types go to the original.
    """
    for name in {type(module).__module__ for module in model.modules()}:
        module = sys.modules[name]
        original = getattr(module, "apply_rotary_pos_emb", None)
        if original is not None and not hasattr(original, "original") and _rotates_halves(original):
            module.apply_rotary_pos_emb = _fused_rotation(original)


def _rotates_halves(original: Rotation) -> bool:
    generator = torch.Generator().manual_seed(0)
    shapes = ((1, 4, 3, 8), (1, 2, 3, 8), (1, 3, 8), (1, 3, 8))
    q, k, cosine, sine = (torch.randn(shape, generator=generator) for shape in shapes)
    try:
        expected = original(q, k, cosine, sine)
        found = [_rotate(x, cosine, sine) for x in (q, k)]
        return len(expected) == 2 and all(_is_same(x, y) for x, y in zip(found, expected, strict=True))
    except (AttributeError, IndexError, TypeError, ValueError, RuntimeError):  # takes something else
        return False


def _fused_rotation(original: Rotation) -> Rotation:
    def apply_rotary_pos_emb(q, k, cos, sin, *arguments, **keywords):
        is_plain = not arguments and not keywords and torch.is_inference_mode_enabled()
        if not is_plain or not _can_rotate(q, k, cos, sin):
            return original(q, k, cos, sin, *arguments, **keywords)
        return _rotate(q, cos, sin), _rotate(k, cos, sin)

    apply_rotary_pos_emb.original = original
    return apply_rotary_pos_emb


def _can_rotate(q: torch.Tensor, k: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> bool:
    """Whether one sequence's whole heads are rotated, in float32 on a CPU: some models rotate a part of each head."""
    is_float32 = all(x.dtype is torch.float32 and x.device.type == "cpu" for x in (q, k, cosine, sine))
    num_tokens, dim = cosine.shape[-2:]
    is_row = all(x.ndim == 4 and x.shape[0] == 1 and x.shape[2:] == (num_tokens, dim) for x in (q, k))
    return is_float32 and is_row and cosine.shape == sine.shape == (1, num_tokens, dim)


def _rotate(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """x [1, heads, T, dim] -> the same shape; tokens come first in memory, as the attention backend wants them."""
    rows = x[0].transpose(0, 1).contiguous()
    output = torch.empty_like(rows)
    rotate(rows.numpy(), cosine[0].numpy(), sine[0].numpy(), output.numpy())
    return output.transpose(0, 1)[None]
