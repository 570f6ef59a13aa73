"""LoRA adapters in a loaded model: rows of several adapters, and of none, in one step.

A layer computes x W^T for all rows of the step as ever. Then, for each adapter among them, its own rows get x A^T B^T more.
The base layer stays a module of its own, so that it can be exchanged for a faster one.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from batchpaged.attention.upload import upload
from batchpaged.errors import ModelError
from batchpaged.models.layers import NUM_PROBE_TOKENS
from batchpaged.models.adapters import WEIGHTS_FILE, Adapter, LoraPair, adapter_problem, read_pairs

Rows = slice | torch.Tensor  # of a step's token axis
_Range = tuple[int, int]


@dataclass
class AdapterRows:
    """Which rows of the present step have which adapter; rows in no group are the base model's."""

    groups: list[tuple[str, Rows]] = field(default_factory=list)  # (identity, rows)
    num_rows: int = 0

    def select(self, parts: Iterable[tuple[str | None, int]], device: torch.device) -> None:
        """`parts` of the token axis, one after the other: (identity, tokens)."""
        ranges: dict[str, list[_Range]] = {}
        self.num_rows = 0
        for identity, num_tokens in parts:
            if identity is not None:
                _append(ranges.setdefault(identity, []), (self.num_rows, self.num_rows + num_tokens))
            self.num_rows += num_tokens
        self.groups = [(identity, _rows(found, device)) for identity, found in ranges.items()]


def _append(ranges: list[_Range], new: _Range) -> None:
    """Sequences of one adapter follow each other as a rule: their rows become one slice, which needs no copy."""
    if ranges and ranges[-1][1] == new[0]:
        ranges[-1] = (ranges[-1][0], new[1])
    else:
        ranges.append(new)


def _rows(ranges: list[_Range], device: torch.device) -> Rows:
    if len(ranges) == 1:
        return slice(*ranges[0])
    return upload([row for start, end in ranges for row in range(start, end)], device)


class AdaptedLinear(nn.Module):
    """A linear layer and its parts of some adapters."""

    def __init__(self, base: nn.Module, rows: AdapterRows) -> None:
        super().__init__()
        self.base = base
        self.parts: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}  # identity -> A [rank, in], B * scale [out, rank]
        self._rows = rows

    @property
    def weight(self) -> torch.Tensor:
        """Some models look at a layer's weight for its type."""
        return self.base.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., tokens, in] -> [..., tokens, out]"""
        if x.shape[-2] != self._rows.num_rows:
            raise ModelError("model.adapters: a layer with an adapter does not see a step's tokens as they are (a layer of experts?)")
        output = self.base(x)
        for identity, rows in self._rows.groups:
            if identity in self.parts:
                a, b = self.parts[identity]
                output[..., rows, :] += (x[..., rows, :] @ a.T) @ b.T
        return output


def install_adapters(model: PreTrainedModel, adapters: Sequence[Adapter]) -> AdapterRows:
    """Exchange the layers that an adapter has a part of, in place. What is returned says whose rows a step has.

    Raises ModelError, as `check_adapters` does.
    """
    pairs = check_adapters(model, adapters)
    rows = AdapterRows(num_rows=NUM_PROBE_TOKENS)
    for adapter in {adapter.identity: adapter for adapter in adapters}.values():
        weights = _load(adapter, model.device)
        for pair in pairs[adapter.name]:
            layer = model.get_submodule(pair.module)
            if not isinstance(layer, AdaptedLinear):
                layer = AdaptedLinear(layer, rows)
                model.set_submodule(pair.module, layer)
            a, b = weights[pair.a_key].to(model.dtype), weights[pair.b_key].float() * pair.scale
            layer.parts[adapter.identity] = (a, b.to(model.dtype))
    return rows


def check_adapters(model: nn.Module, adapters: Sequence[Adapter]) -> Mapping[str, tuple[LoraPair, ...]]:
    """-> each adapter's pairs, by its name. The model may be one without weights.

    Raises ModelError where an adapter belongs to another model, or to layers for which this is not supported.
    """
    layers, head = dict(model.named_modules()), model.get_output_embeddings()
    pairs = {adapter.name: read_pairs(adapter) for adapter in adapters}
    for adapter in adapters:
        for pair in pairs[adapter.name]:
            problem = _misfit(pair, layers.get(pair.module), head)
            if problem is not None:
                raise ModelError(adapter_problem(adapter.name, problem))
    return pairs


def _misfit(pair: LoraPair, layer: nn.Module | None, head: nn.Module | None) -> str | None:
    if layer is None:
        return f"it is for another model: this one has no layer {pair.module}"
    if layer is head or not isinstance(layer, (nn.Linear, Conv1D)):
        return f"its target {pair.module} is a {type(layer).__name__}; only linear layers inside the model are supported"
    num_outputs, num_inputs = layer.weight.shape if isinstance(layer, nn.Linear) else reversed(layer.weight.shape)
    if (pair.num_inputs, pair.num_outputs) != (num_inputs, num_outputs):
        return (
            f"it is for another model: {pair.module} has {num_inputs} inputs and {num_outputs} outputs here, "
            f"and {pair.num_inputs} and {pair.num_outputs} there"
        )
    return None


def _load(adapter: Adapter, device: torch.device) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(Path(adapter.path) / WEIGHTS_FILE, device=str(device))
    except (SafetensorError, OSError) as error:
        raise ModelError(adapter_problem(adapter.name, f"{WEIGHTS_FILE} cannot be read ({error})")) from error
