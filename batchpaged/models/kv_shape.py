"""The shape of a model's keys and values, from its configuration."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


@dataclass(frozen=True)
class LayerShape:
    """One layer's keys and values for one token."""

    num_kv_heads: int
    key_dim: int  # per head
    value_dim: int  # per head


@dataclass(frozen=True)
class KVShape:
    """A whole model's keys and values for one token; every layer alike."""

    num_layers: int
    num_kv_heads: int
    head_dim: int

    @property
    def num_values(self) -> int:
        """Numbers stored for one token, keys and values together."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim


def kv_shape(config: "PreTrainedConfig") -> KVShape:
    """For a configuration that `check_supported` accepts; other ones have no single shape."""
    shapes = layer_shapes(config)
    return KVShape(len(shapes), shapes[0].num_kv_heads, shapes[0].key_dim)


def layer_shapes(config: "PreTrainedConfig") -> list[LayerShape]:
    """One for each layer, in their order."""
    per_layer = getattr(config, "per_layer_config", None)
    layers = [per_layer[index] for index in range(config.num_hidden_layers)] if per_layer is not None else []
    return [_layer_shape(layer) for layer in layers or [config] * config.num_hidden_layers]


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
