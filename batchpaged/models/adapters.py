"""LoRA adapters as folders in peft's format: what is in them, and what tells one from another. Without torch.

An adapter is a pair of matrices for each of some linear layers: A [rank, inputs] and B [outputs, rank]. The layer's output
grows by x A^T B^T * scale. Which layers is what the weights say; whatever else an adapter may hold is refused.
"""

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from batchpaged.errors import ModelError
from batchpaged.models.adapter_folder import CONFIG_FILE, WEIGHTS_FILE, what_is_missing

# Settings that change what an adapter computes, and the values that change nothing.
_PLAIN = {
    "bias": ("none", None),
    "lora_bias": (False, None),
    "modules_to_save": ([], None),
    "use_dora": (False, None),
    "use_qalora": (False, None),
    "layer_replication": ([], None),
    "target_parameters": ([], None),
    "trainable_token_indices": ([], {}, None),
    "alora_invocation_tokens": ([], None),
    "arrow_config": (None,),
    "kasa_config": (None,),
    "monteclora_config": (None,),
    "use_bdlora": (None, False),
    "velora_config": (None,),
    # Others (pissa, olora, corda, loftq, ...) have changed the base model's weights before training.
    "init_lora_weights": (True, False, None, "gaussian", "eva", "orthogonal"),
}
_KEY = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<part>[AB])(\.default)?\.weight")


@dataclass(frozen=True)
class Adapter:
    """Picklable and small: a worker reads the weights itself."""

    name: str  # in the pipeline file
    path: str  # absolute
    identity: str  # 32 hex digits over what decides what it computes


@dataclass(frozen=True)
class LoraPair:
    """One linear layer's part, as it stands in the file."""

    module: str  # the layer's name in the base model
    a_key: str
    b_key: str
    rank: int
    num_inputs: int
    num_outputs: int
    scale: float


def find_adapters(folders: tuple[tuple[str, str], ...]) -> tuple[Adapter, ...]:
    """In the order given. Raises ModelError naming the adapter that is not one, and why."""
    return tuple(_find(name, Path(folder)) for name, folder in folders)


def _find(name: str, folder: Path) -> Adapter:
    path = folder.expanduser()
    problem = what_is_missing(folder)
    if problem is not None:
        raise ModelError(adapter_problem(name, problem))
    adapter = Adapter(name, str(path.resolve()), "")
    settings = _settings(adapter)
    try:
        weights = xxhash.xxh3_128(json.dumps(settings, sort_keys=True).encode())
        with (path / WEIGHTS_FILE).open("rb") as file:
            while chunk := file.read(1 << 24):
                weights.update(chunk)
    except OSError as error:
        raise ModelError(adapter_problem(name, f"{WEIGHTS_FILE} cannot be read ({error.strerror})")) from error
    return Adapter(name, adapter.path, weights.hexdigest())


def _settings(adapter: Adapter) -> dict[str, Any]:
    """Those that decide the scale of each layer. Raises ModelError for an adapter that is more than LoRA."""
    try:
        config = json.loads((Path(adapter.path) / CONFIG_FILE).read_text("utf-8"))
        kind = config.get("peft_type")
    except (OSError, ValueError, AttributeError) as error:
        raise ModelError(adapter_problem(adapter.name, f"{CONFIG_FILE} cannot be read ({type(error).__name__})")) from error
    if kind != "LORA":
        raise ModelError(adapter_problem(adapter.name, f"it is of type {kind!r}, and only LORA is supported"))
    other = [key for key, plain in _PLAIN.items() if config.get(key) not in plain]
    if other:
        raise ModelError(adapter_problem(adapter.name, f"{CONFIG_FILE} sets {', '.join(other)}, which is not supported"))
    names = {"r": 8, "lora_alpha": 8, "use_rslora": False, "rank_pattern": {}, "alpha_pattern": {}}  # peft's defaults
    return {key: config[key] if config.get(key) is not None else default for key, default in names.items()}


def read_pairs(adapter: Adapter) -> tuple[LoraPair, ...]:
    """What the file holds, by module. Raises ModelError where it is not LoRA pairs alone, or not of the rank that is said."""
    shapes = _shapes(adapter)
    parts: dict[str, dict[str, str]] = {}
    for key in shapes:
        match = _KEY.fullmatch(key)
        if match is None:
            raise ModelError(adapter_problem(adapter.name, f"it holds {key}; only pairs lora_A, lora_B of linear layers are supported"))
        parts.setdefault(match["module"], {})[match["part"]] = key
    if not parts:
        raise ModelError(adapter_problem(adapter.name, f"{WEIGHTS_FILE} holds nothing"))
    settings = _settings(adapter)
    return tuple(_pair(adapter, module, parts[module], shapes, settings) for module in sorted(parts))


def _shapes(adapter: Adapter) -> dict[str, tuple[int, ...]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(Path(adapter.path) / WEIGHTS_FILE, framework="numpy") as file:
            return {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}
    except (SafetensorError, OSError) as error:
        raise ModelError(adapter_problem(adapter.name, f"{WEIGHTS_FILE} cannot be read ({error})")) from error


def _pair(
    adapter: Adapter, module: str, keys: dict[str, str], shapes: dict[str, tuple[int, ...]], settings: dict[str, Any]
) -> LoraPair:
    if len(keys) < 2:
        raise ModelError(adapter_problem(adapter.name, f"of {module} it holds lora_{next(iter(keys))} alone"))
    a, b = shapes[keys["A"]], shapes[keys["B"]]
    rank = _of_module(module, settings["rank_pattern"], settings["r"])
    if len(a) != 2 or len(b) != 2 or a[0] != rank or b[1] != rank:
        raise ModelError(adapter_problem(adapter.name, f"of {module} it holds shapes {a} and {b}, which are not of rank {rank}"))
    alpha = _of_module(module, settings["alpha_pattern"], settings["lora_alpha"])
    scale = alpha / (math.sqrt(rank) if settings["use_rslora"] else rank)
    return LoraPair(module, keys["A"], keys["B"], rank, a[1], b[0], scale)


def _of_module(module: str, pattern: dict[str, Any], default: Any) -> Any:
    """The value of the first key that is the end of the module's name, or a regular expression of it, as in peft."""
    return next((value for key, value in pattern.items() if re.match(rf"(.*\.)?({key})$", module)), default)


def adapter_problem(name: str, words: str) -> str:
    """A refusal's words, under the key of the adapter."""
    return f"model.adapters.{name}: {words}"
