"""Small random LoRA adapters as peft saves them, and a base model with one of them merged into its weights."""

import json
import math
import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tiny_models import tiny_model
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

ALL = r".*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)"


def save_adapter(
    folder: Path, seed: int, target: str = ALL, model: str = "llama", rank: int = 3, alpha: float = 12, **config: Any
) -> Path:
    """An adapter of the layers whose whole name matches `target`; large enough to change which token is best."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, layer in tiny_model(model).named_modules():
        if re.fullmatch(target, name) and hasattr(layer, "weight"):
            num_outputs, num_inputs = _shape(layer)
            own_rank = config.get("rank_pattern", {}).get(name.rpartition(".")[2], rank)
            key = f"base_model.model.{name}.lora_"
            tensors[f"{key}A.weight"] = torch.randn(own_rank, num_inputs, generator=generator) * 0.1
            tensors[f"{key}B.weight"] = torch.randn(num_outputs, own_rank, generator=generator) * 0.1
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "target_modules": target, "bias": "none", **config}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def _shape(layer: torch.nn.Module) -> tuple[int, int]:
    """(outputs, inputs)"""
    shape = tuple(layer.weight.shape)
    return shape[::-1] if isinstance(layer, Conv1D) else shape


def merged_model(folder: Path | None, model: str = "llama") -> PreTrainedModel:
    """W + B A * scale, computed here from the files alone; None: the base."""
    from safetensors.torch import load_file

    merged = tiny_model(model)
    if folder is None:
        return merged
    config = json.loads((folder / "adapter_config.json").read_text())
    tensors = load_file(folder / "adapter_model.safetensors")
    for key, a in tensors.items():
        if ".lora_A." not in key:
            continue
        name, b = key.removeprefix("base_model.model.").partition(".lora_A")[0], tensors[key.replace("lora_A", "lora_B")]
        alpha = config.get("alpha_pattern", {}).get(name.rpartition(".")[2], config["lora_alpha"])
        scale = alpha / (math.sqrt(len(a)) if config.get("use_rslora") else len(a))
        layer = merged.get_submodule(name)
        change = b @ a * scale
        layer.weight.data += change.T if isinstance(layer, Conv1D) else change
    return merged
