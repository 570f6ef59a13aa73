"""Which modules of a model can be exchanged for faster ones: found by trying, so what a class is called does not matter."""

import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import nn

from batchpaged.models.needed_rows import needed_rows

# The order of summation differs from the original's, nothing else; a wrong formula is off by much more.
TOLERANCE = 1e-4
# Of the rows of test input. Large ones reach bounds that a formula may have, small ones show what is added to a sum.
TEST_SCALES = (0.01, 0.1, 1.0, 10.0, 1000.0)

Forward = Callable[[torch.Tensor], torch.Tensor]
# (weight [N, K], bias [N] or None) -> x [*, K] -> [*, N], as torch.nn.functional.linear
Product = Callable[[torch.Tensor, torch.Tensor | None], Forward]
Rotation = Callable[..., tuple[torch.Tensor, torch.Tensor]]  # (q, k, cosine, sine), as in transformers' attention modules


@dataclass(frozen=True)
class FusedCounts:
    """Modules exchanged."""

    num_linear: int
    num_mlp: int
    num_norm: int


def takes_one_input(module: nn.Module) -> bool:
    return len(inspect.signature(module.forward).parameters) == 1


def gives_the_same(module: nn.Module, replacement: Forward) -> bool:
    """On random input, row by row. The module must be in float32."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, len(TEST_SCALES), _input_size(module), generator=generator) * torch.tensor(TEST_SCALES)[:, None]
    x = x.to(next(module.parameters()).device)
    return is_same(replacement(x), module.forward(x))


def is_same(result: torch.Tensor, expected: torch.Tensor) -> bool:
    """Row by row, beside the row's greatest value."""
    if result.shape != expected.shape:
        return False
    errors, scales = (result - expected).abs().amax(-1), expected.abs().amax(-1)
    return bool((errors <= TOLERANCE * scales.clamp_min(1e-12)).all())


def _input_size(module: nn.Module) -> int:
    if isinstance(module, nn.Linear):
        return module.in_features
    return module.weight.shape[0] if is_rms_norm(module) else module.gate_proj.in_features


def free_weight(module: nn.Linear) -> None:
    """Give back what nobody else holds; a tied embedding does. Shape and type can still be asked for.

    Not by a tensor on torch's meta device: MKL's products read that as if it had memory.
    """
    weight = module.weight
    nothing = torch.full((1,), float("nan"), dtype=weight.dtype, device=weight.device)
    module.weight = nn.Parameter(nothing.expand(weight.shape), requires_grad=False)


# --- gated MLPs ---


def gated_mlps(model: nn.Module) -> list[nn.Module]:
    """down(act(gate(x)) * up(x)), as in most models since Llama, of layers that are in no other module."""
    owners = Counter(id(child) for module in model.modules() for child in module.children())
    return [module for module in model.modules() if _is_gated_mlp(module, owners)]


def _is_gated_mlp(module: nn.Module, owners: Counter[int]) -> bool:
    layers = [getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
    is_complete = all(type(layer) is nn.Linear for layer in layers) and hasattr(module, "act_fn")
    is_alone = all(owners[id(layer)] == 1 for layer in layers)
    return is_complete and is_alone and (layers[0].bias is None) == (layers[1].bias is None)


def compute_only_needed_rows(model: nn.Module, mlps: list[nn.Module]) -> None:
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


def is_rms_norm(module: nn.Module) -> bool:
    weight = getattr(module, "weight", None)
    is_alone = len(list(module.parameters(recurse=False))) == 1 and not list(module.children())
    return is_alone and isinstance(weight, nn.Parameter) and weight.ndim == 1 and _epsilon(module) is not None


def _epsilon(module: nn.Module) -> float | None:
    found = (getattr(module, name, None) for name in ("variance_epsilon", "eps"))
    return next((value for value in found if isinstance(value, float)), None)


def epsilon(module: nn.Module) -> float:
    """Of a module that is an RMS norm."""
    value = _epsilon(module)
    if value is None:
        raise ValueError(f"{type(module).__name__} has no epsilon")
    return value


# --- rotary position embedding ---


@dataclass(frozen=True)
class RotationKernel:
    """Rotates one sequence's queries and keys, [1, heads, T, dim], by whole heads in halves."""

    rotate: Rotation
    can_rotate: Callable[..., bool]  # of the same arguments: calls that it does not take go to the original


def exchange_rotation(model: nn.Module, kernel: RotationKernel, device: torch.device) -> None:
    """Exchange the function with which transformers' attention modules rotate queries and keys.

    It belongs to the file of the model's class, so it is that of all its models. Calls in training go to the original.
    """
    for name in {type(module).__module__ for module in model.modules()}:
        module = sys.modules[name]
        present = getattr(module, "apply_rotary_pos_emb", None)
        if present is None or getattr(present, "kernel", None) is kernel:
            continue
        original = getattr(present, "original", present)
        if _rotates_halves(original, kernel.rotate, device):
            module.apply_rotary_pos_emb = _with_kernel(original, kernel)


def _rotates_halves(original: Rotation, rotate: Rotation, device: torch.device) -> bool:
    generator = torch.Generator().manual_seed(0)
    shapes = ((1, 4, 3, 8), (1, 2, 3, 8), (1, 3, 8), (1, 3, 8))
    inputs = [torch.randn(shape, generator=generator).to(device) for shape in shapes]
    try:
        expected = original(*inputs)
        return len(expected) == 2 and all(map(is_same, rotate(*inputs), expected))
    except (AttributeError, IndexError, TypeError, ValueError, RuntimeError):  # takes something else
        return False


def _with_kernel(original: Rotation, kernel: RotationKernel) -> Rotation:
    def apply_rotary_pos_emb(q, k, cos, sin, *arguments, **keywords):
        is_plain = not arguments and not keywords and torch.is_inference_mode_enabled()
        if not is_plain or not kernel.can_rotate(q, k, cos, sin):
            return original(q, k, cos, sin, *arguments, **keywords)
        return kernel.rotate(q, k, cos, sin)

    apply_rotary_pos_emb.original = original
    apply_rotary_pos_emb.kernel = kernel
    return apply_rotary_pos_emb


def is_one_sequence(q: torch.Tensor, k: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> bool:
    """Whether one sequence's whole heads are rotated, all in one type and place: some models rotate a part of each head."""
    rest: Iterable[torch.Tensor] = (k, cosine, sine)
    is_alike = all(x.dtype is q.dtype and x.device == q.device for x in rest)
    num_tokens, dim = cosine.shape[-2:]
    is_row = all(x.ndim == 4 and x.shape[0] == 1 and x.shape[2:] == (num_tokens, dim) for x in (q, k))
    return is_alike and is_row and cosine.shape == sine.shape == (1, num_tokens, dim)
