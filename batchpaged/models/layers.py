"""What a model's attention layers ask for, learned by running it once on two tokens.

A configuration cannot tell everything: a layer may call attention twice, or pass a bias that nobody else knows. So
every model is asked once more when its weights are there, and refused if it asks for what would silently be ignored.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from batchpaged.attention.layer_shape import LayerShape
from batchpaged.errors import ModelError
from batchpaged.models.quiet import quiet_transformers

RECORDER = "batchpaged_recorder"
NUM_PROBE_TOKENS = 2  # that a model is run on, once, to see what it asks for
# Keyword arguments that attention functions get and that change nothing for a causal model in a flattened batch.
_HARMLESS = {
    "cache",
    "cache_position",
    "cu_seq_lens_k",
    "cu_seq_lens_q",
    "dropout",
    "is_causal",
    "kwargs",
    "logits_to_keep",
    "max_length_k",
    "max_length_q",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "past_key_values",
    "position_ids",
    "return_dict",
    "scaling",
    "use_cache",
}


@dataclass(frozen=True)
class AttentionLayer:
    """One layer's attention call."""

    index: int
    num_heads: int
    shape: LayerShape
    scaling: float | None  # factor on the scores; None: head_dim ** -0.5
    sliding_window: int | None  # tokens a query sees, itself included; None: all before it
    softcap: float | None
    has_sinks: bool


@dataclass(frozen=True)
class _Call:
    """An attention call as it came."""

    layer: AttentionLayer
    is_causal: bool
    has_mask: bool
    unknown: tuple[str, ...]  # arguments beyond those that are honoured or harmless


def attention_layers(model: PreTrainedModel) -> tuple[AttentionLayer, ...]:
    """The model's layers in order.

    Runs the model on two tokens through an attention function that returns zeros; the model is as before afterwards.
    Raises ModelError where the model asks for something that cannot be honoured.
    """
    with _recording(model) as calls:
        tokens = torch.zeros((1, NUM_PROBE_TOKENS), dtype=torch.long, device=model.device)
        positions = torch.arange(NUM_PROBE_TOKENS, device=model.device)[None]
        model(input_ids=tokens, position_ids=positions, use_cache=False, logits_to_keep=1)
    problem = _problem(calls, model.config.num_hidden_layers)
    if problem is not None:
        raise ModelError(f"a model of type {model.config.model_type!r} cannot be run: {problem}")
    return tuple(call.layer for call in calls)


def _problem(calls: list[_Call], num_layers: int) -> str | None:
    if [call.layer.index for call in calls] != list(range(num_layers)):
        return f"its {num_layers} layers make {len(calls)} attention calls, where one for each in turn is needed"
    return next((problem for call in calls if (problem := _call_problem(call)) is not None), None)


def _call_problem(call: _Call) -> str | None:
    if not call.is_causal:
        return "its attention looks both ways"
    if call.has_mask:
        return "it makes an attention mask of its own"
    return f"its attention needs {call.unknown[0]}, which is not supported" if call.unknown else None


@contextlib.contextmanager
def _recording(model: PreTrainedModel) -> Iterator[list[_Call]]:
    """Inside the block the model computes nothing in its attention and every call is added to the list."""
    calls: list[_Call] = []

    def record(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: Any,  # some models pass it by name
        **arguments: Any,
    ) -> tuple[torch.Tensor, None]:
        calls.append(_call(module, query, key, value, attention_mask, arguments))
        return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3]), None

    AttentionInterface.register(RECORDER, record)
    AttentionMaskInterface.register(RECORDER, lambda *arguments, **keywords: None)
    before = model.config._attn_implementation
    model.config._attn_implementation = RECORDER
    try:
        with torch.inference_mode(), quiet_transformers():
            yield calls
    finally:
        model.config._attn_implementation = before


def _call(
    module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, arguments: Any
) -> _Call:
    """query [1, num_heads, 2, head_dim]; key, value [1, num_kv_heads, 2, head_dim or value_dim]"""
    rest = dict(arguments)
    layer = AttentionLayer(
        index=getattr(module, "layer_idx", -1),
        num_heads=query.shape[1],
        shape=LayerShape(key.shape[1], key.shape[3], value.shape[3]),
        scaling=rest.pop("scaling", None),
        sliding_window=rest.pop("sliding_window", None),
        softcap=rest.pop("softcap", None),
        has_sinks=rest.pop("s_aux", None) is not None,
    )
    is_causal = rest.get("is_causal")
    unknown = tuple(sorted(name for name, given in rest.items() if given is not None and name not in _HARMLESS))
    return _Call(
        layer=layer,
        is_causal=getattr(module, "is_causal", True) if is_causal is None else is_causal,
        has_mask=mask is not None,
        unknown=unknown,
    )
