"""The shape of a model's keys and values, and what a token of them takes, from its configuration."""

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from batchpaged.attention.layer_shape import LayerShape

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig

    from batchpaged.attention.kv_array import KvDtype
    from batchpaged.config import EngineConfig


def kv_bytes_per_token(layers: Iterable[LayerShape], dtype: "torch.dtype", kv_dtype: "KvDtype") -> int:
    """Of all layers, as the engine stores them: in the model's own type, or in 8 bits with scales."""
    return sum(layer.num_bytes(dtype.itemsize, kv_dtype != "auto") for layer in layers)


def kv_block_bytes(config: "PreTrainedConfig", engine: "EngineConfig", dtype: "torch.dtype") -> int:
    """Of one block of an engine's cache; for a configuration that `check_supported` accepts."""
    return kv_bytes_per_token(layer_shapes(config), dtype, engine.kv_dtype) * engine.block_size


def layer_shapes(config: "PreTrainedConfig") -> list[LayerShape]:
    """One for each layer, in their order; for a configuration that `check_supported` accepts."""
    per_layer = getattr(config, "per_layer_config", None)
    layers = [per_layer[index] for index in range(config.num_hidden_layers)] if per_layer is not None else []
    shapes = [_layer_shape(layer) for layer in layers or [config] * config.num_hidden_layers]
    return _double_sliding_layers(shapes, config) if config.model_type == "mimo_v2_flash" else shapes


def layer_windows(config: "PreTrainedConfig") -> list[int | None]:
    """Tokens that each layer's queries see, themselves included; None: all before them."""
    num_layers, window = config.num_hidden_layers, getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * num_layers
    return [window if window and kind == "sliding_attention" else None for kind in kinds]


def _double_sliding_layers(shapes: list[LayerShape], config: Any) -> list[LayerShape]:
    """This type's code gives its sliding layers twice the K/V heads that its configuration names."""
    is_sliding = [kind == "sliding_attention" for kind in config.layer_types]
    return [replace(s, num_kv_heads=2 * s.num_kv_heads) if k else s for s, k in zip(shapes, is_sliding, strict=True)]


def _layer_shape(config: Any) -> LayerShape:
    if getattr(config, "kv_lora_rank", None):
        return _expanded_latent_shape(config)
    num_heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or getattr(config, "kv_channels", None)
    head_dim = head_dim or config.hidden_size // num_heads
    return LayerShape(_num_kv_heads(config), head_dim, getattr(config, "v_head_dim", None) or head_dim)


def _expanded_latent_shape(config: Any) -> LayerShape:
    """Multi-head latent attention: what reaches attention is expanded to every head, in two parts for keys."""
    return LayerShape(
        config.num_attention_heads, config.qk_nope_head_dim + config.qk_rope_head_dim, config.v_head_dim
    )


def _num_kv_heads(config: Any) -> int:
    if getattr(config, "multi_query", False):
        return 1
    grouped = getattr(config, "num_key_value_heads", None)
    return grouped or getattr(getattr(config, "attn_config", None), "kv_n_heads", None) or config.num_attention_heads
