"""Writes a GGUF file's model and tokenizer as a safetensors folder, weights in float32.

float32 keeps exactly the values that the quantised file stands for; any shorter type would round them once more.
"""

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, PreTrainedModel, modeling_gguf_pytorch_utils

from batchpaged.errors import ModelError
from batchpaged.models.gguf_tokenizer import tokenizer_from_gguf
from batchpaged.models.quiet import quiet_transformers
from batchpaged.models.weights import check_weights_complete


def convert_gguf(gguf: Path, target: Path) -> None:
    """Creates the folder `target`. Raises ModelError where the file cannot be read as a model or written as one."""
    with quiet_transformers(), _no_tensor_bar():
        tokenizer = tokenizer_from_gguf(gguf)
        model = _read_model(gguf)
        _forget_quantisation(model)
        try:
            model.save_pretrained(target)
            tokenizer.save_pretrained(target)
        except SafetensorError as error:
            raise ModelError(f"{target}: the model cannot be written ({error})") from error


def _read_model(gguf: Path) -> PreTrainedModel:
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.float32, output_loading_info=True
        )
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, NotImplementedError) as error:
        raise ModelError(f"{gguf.name} cannot be converted: {error}") from error
    check_weights_complete(gguf.name, info)
    return model


@contextlib.contextmanager
def _no_tensor_bar() -> Iterator[None]:
    """The one bar that transformers draws whatever its settings say."""
    drawn = modeling_gguf_pytorch_utils.tqdm
    modeling_gguf_pytorch_utils.tqdm = functools.partial(drawn, disable=True)
    try:
        yield
    finally:
        modeling_gguf_pytorch_utils.tqdm = drawn


def _forget_quantisation(model: PreTrainedModel) -> None:
    """The weights are plain float32 now; transformers refuses to save a model that still says it came from GGUF."""
    model.is_quantized = False
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
