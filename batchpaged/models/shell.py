"""A model's modules without its weights: what can be counted on them needs no file but the configuration."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel


def model_without_weights(config: "PreTrainedConfig") -> "PreTrainedModel":
    """On torch's meta device: shapes and no numbers, so that a model of any size takes a moment and no memory."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def num_parameters(config: "PreTrainedConfig") -> int:
    """Tied weights count once, and experts all."""
    return sum(parameter.numel() for parameter in model_without_weights(config).parameters())
