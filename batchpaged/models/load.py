"""From a resolved model to its configuration, tokenizer and weights. No code of a repository is ever run."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batchpaged.errors import ModelError
from batchpaged.models.folder import CONFIG_FILE
from batchpaged.models.quiet import quiet_transformers
from batchpaged.models.resolve import ResolvedModel
from batchpaged.models.weights import check_weights_complete

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

_LOCAL = {"local_files_only": True, "trust_remote_code": False}
# What transformers and tokenizers raise for a folder that they cannot make sense of.
_FOLDER_ERRORS = (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, ImportError)


def load_config(resolved: ResolvedModel) -> "PreTrainedConfig":
    """Raises ModelError: unreadable, unknown to this version of transformers, or in need of code of its own."""
    return read_config(resolved.id, resolved.path / CONFIG_FILE)


def read_config(id: str, file: Path) -> "PreTrainedConfig":
    """The configuration in a file; `id` names the model in errors. Raises ModelError as `load_config` does."""
    from transformers import AutoConfig

    _check_known_type(id, _raw_config(id, file))
    try:
        with quiet_transformers():
            return AutoConfig.from_pretrained(file, **_LOCAL)
    except _FOLDER_ERRORS as error:
        raise ModelError(f"model {id!r}: its {CONFIG_FILE} cannot be used ({_line(error)})") from error


def note_on_code(resolved: ResolvedModel) -> str | None:
    """What to know of a model that comes with code of its own, where transformers knows its type all the same."""
    if not _names_code(resolved, CONFIG_FILE):
        return None
    return f"model {resolved.id}: it comes with code of its own, which is not run; transformers' own class is used"


def _names_code(resolved: ResolvedModel, file: str) -> bool:
    try:
        return bool(json.loads((resolved.path / file).read_text("utf-8")).get("auto_map"))
    except (OSError, ValueError, AttributeError):
        return False


def _raw_config(id: str, file: Path) -> dict[str, Any]:
    try:
        raw = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"model {id!r}: its {CONFIG_FILE} cannot be read ({_line(error)})") from error
    if not isinstance(raw, dict) or not isinstance(raw.get("model_type"), str):
        raise ModelError(f"model {id!r}: its {CONFIG_FILE} names no model_type")
    return raw


def _check_known_type(id: str, raw: dict[str, Any]) -> None:
    import transformers

    if raw["model_type"] in transformers.CONFIG_MAPPING:
        return
    if "auto_map" in raw:
        raise ModelError(
            f"model {id!r} (type {raw['model_type']!r}) needs code from its repository, which batchpaged "
            "never runs; take a model whose type transformers knows"
        )
    raise ModelError(
        f"model {id!r} is of type {raw['model_type']!r}, which transformers {transformers.__version__} "
        "does not know; a newer version may"
    )


def load_tokenizer(resolved: ResolvedModel) -> "PreTrainedTokenizerBase":
    """The tokenizer with its chat template and special tokens, as the model's files define them. Raises ModelError."""
    from transformers import AutoTokenizer

    try:
        with quiet_transformers():
            return AutoTokenizer.from_pretrained(resolved.path, **_LOCAL)
    except _FOLDER_ERRORS as error:
        if _names_code(resolved, "tokenizer_config.json"):
            raise ModelError(
                f"model {resolved.id!r}: its tokenizer needs code from its repository, which batchpaged never runs; "
                "put a tokenizer.json beside it (`save_pretrained` of a fast tokenizer writes one) or take another model"
            ) from error
        raise ModelError(f"model {resolved.id!r}: its tokenizer cannot be loaded ({_line(error)})") from error


def resolve_dtype(config_dtype: "torch.dtype | str | None", requested: str, device: str) -> "torch.dtype":
    """The type to compute in. `auto`: float32 on a CPU; on a GPU the checkpoint's 16-bit type, or else bfloat16.

    Short types are slow on most CPUs, and float32 is on GPUs. A GPU without bfloat16 gets float16.
    """
    import torch

    if requested != "auto":
        return getattr(torch, requested)
    if torch.device(device).type == "cpu":
        return torch.float32
    own = getattr(torch, config_dtype, None) if isinstance(config_dtype, str) else config_dtype
    wanted = own if own in (torch.float16, torch.bfloat16) else torch.bfloat16
    return wanted if wanted is torch.float16 or _has_bfloat16(device) else torch.float16


def _has_bfloat16(device: str) -> bool:
    import torch

    return not torch.cuda.is_available() or torch.cuda.get_device_capability(torch.device(device)) >= (8, 0)


def load_model(
    resolved: ResolvedModel, *, dtype: "torch.dtype", device: str, attn_implementation: str
) -> "PreTrainedModel":
    """The model on `device`, ready for inference, every weight from its safetensors files.

    `attn_implementation` has to be registered with transformers. Raises ModelError where weights are missing, left over
    or of the wrong shape. What the model asks its attention for, `attention_layers` tells.
    """
    model, info = _from_pretrained(resolved, dtype, device, attn_implementation)
    check_weights_complete(resolved.id, info)
    return model.eval().requires_grad_(False)


def _from_pretrained(
    resolved: ResolvedModel, dtype: "torch.dtype", device: str, attn_implementation: str
) -> "tuple[PreTrainedModel, dict[str, Any]]":
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    place = {} if torch.device(device).type == "cpu" else {"device_map": {"": device}}
    try:
        with quiet_transformers():
            return AutoModelForCausalLM.from_pretrained(
                resolved.path,
                dtype=dtype,
                attn_implementation=attn_implementation,
                use_safetensors=True,
                output_loading_info=True,
                **place,
                **_LOCAL,
            )
    except torch.OutOfMemoryError as error:
        raise ModelError(f"model {resolved.id!r} does not fit into the memory of {device} as {dtype}") from error
    except (SafetensorError, *_FOLDER_ERRORS) as error:
        raise ModelError(f"model {resolved.id!r}: its weights cannot be loaded ({_line(error)})") from error


def stop_token_ids(model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase | None") -> frozenset[int]:
    """The end-of-text ids, where transformers' generate would stop; the tokenizer's where the model names none."""
    generation = getattr(model, "generation_config", None)
    for source in (generation, model.config, tokenizer):
        ids = getattr(source, "eos_token_id", None)
        if ids is not None:
            return frozenset(ids) if isinstance(ids, (list, tuple)) else frozenset((int(ids),))
    return frozenset()


def _line(error: Exception) -> str:
    """Some of these messages are pages long; the first line names the problem."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
