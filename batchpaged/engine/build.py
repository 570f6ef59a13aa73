"""From configuration to a running engine: device, model, KV cache, attention backend."""

from __future__ import annotations

import gc
import os
from typing import TYPE_CHECKING

import psutil
import torch

from batchpaged.attention.interface import NAME, register
from batchpaged.attention.kv_array import KvDtype
from batchpaged.attention.layer_shape import LayerShape
from batchpaged.config.sizes import format_bytes, parse_bytes
from batchpaged.engine.allocator import keep_freed_memory
from batchpaged.engine.attention_check import check_attention
from batchpaged.engine.attention_choice import attention_backend, can_be_batch_invariant
from batchpaged.engine.engine import Engine, EngineLimits
from batchpaged.engine.invariance import check_batch_invariance
from batchpaged.engine.model_runner import ModelRunner
from batchpaged.engine.stop import StopCheck
from batchpaged.errors import ModelError
from batchpaged.models.layers import attention_layers
from batchpaged.models.load import load_model, load_tokenizer, resolve_dtype, stop_token_ids

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from batchpaged.config import EngineConfig, ModelConfig
    from batchpaged.models.resolve import ResolvedModel

# Of the memory that is free once the model is loaded; the rest is for activations, and for other processes.
FREE_MEMORY_SHARE = 0.5


def build_engine(
    resolved: ResolvedModel, model_config: ModelConfig, config: EngineConfig, device: str, run_id: str, num_threads: int
) -> Engine:
    """Load the model and allocate its KV cache. Raises ModelError."""
    register()
    torch.set_num_threads(num_threads)
    tokenizer = load_tokenizer(resolved)
    dtype = resolve_dtype(_config_dtype(resolved), model_config.dtype, device)
    check_attention(config.attention, device)
    if config.batch_invariant and not can_be_batch_invariant(config, device, dtype):
        raise ModelError(
            "engine.batch_invariant needs attention: auto in float32 on a CPU, and kv_dtype: auto, in this version; set it to false"
        )
    model = load_model(resolved, dtype=dtype, device=device, attn_implementation=NAME)
    layers = attention_layers(model)
    if device == "cpu":
        _prepare_cpu(model, config, num_threads)
    shapes = tuple(layer.shape for layer in layers)
    num_blocks = num_kv_blocks(config, shapes, dtype, device)
    backend = attention_backend(config, layers, num_blocks, dtype, device)
    runner = ModelRunner(model, backend)
    if config.batch_invariant:
        check_batch_invariance(runner, model.get_input_embeddings().num_embeddings, num_blocks, config.block_size)
    limits = EngineLimits(
        num_blocks=num_blocks,
        block_size=config.block_size,
        max_batch_tokens=config.max_batch_tokens,
        max_sequences=config.max_sequences,
        max_model_len=model_config.max_model_len,
        prefix_cache=config.prefix_cache,
    )
    gc.collect()
    gc.freeze()  # nothing loaded so far goes away while the engine runs; looking through it again and again takes 0.2 s each time
    root = f"{run_id}|{resolved.identity}|{dtype}|{config.kv_dtype}".encode()
    return Engine(runner, limits, StopCheck(tokenizer, stop_token_ids(model, tokenizer)), root)


def _prepare_cpu(model: PreTrainedModel, config: EngineConfig, num_threads: int) -> None:
    # numba is imported for CPUs only.
    from batchpaged.kernels.cpu import jit
    from batchpaged.models.fused import fuse
    from batchpaged.models.products import blas_product, ordered_product

    jit.set_num_threads(num_threads)
    keep_freed_memory()
    if model.dtype is torch.float32 and (config.fused_modules or config.batch_invariant):
        fuse(model, ordered_product if config.batch_invariant else blas_product)


def _config_dtype(resolved: ResolvedModel) -> torch.dtype | str | None:
    from batchpaged.models.load import load_config

    return getattr(load_config(resolved), "dtype", None)


def choose_device(requested: str, worker_index: int) -> str:
    """`auto` takes a GPU if there is one; workers of one machine take its GPUs in turn."""
    if requested == "cpu" or (requested == "auto" and not torch.cuda.is_available()):
        return "cpu"
    if not torch.cuda.is_available():
        raise ModelError("engine.device is cuda, but torch sees no GPU here; use auto or cpu")
    return f"cuda:{worker_index % torch.cuda.device_count()}"


def kv_bytes_per_token(layers: tuple[LayerShape, ...], dtype: torch.dtype, kv_dtype: KvDtype) -> int:
    return sum(layer.num_bytes(dtype.itemsize, kv_dtype != "auto") for layer in layers)


def num_kv_blocks(config: EngineConfig, layers: tuple[LayerShape, ...], dtype: torch.dtype, device: str) -> int:
    """Blocks of the pool. Raises ModelError where not even one block fits."""
    if isinstance(config.kv_cache, int):
        return config.kv_cache
    block_bytes = kv_bytes_per_token(layers, dtype, config.kv_dtype) * config.block_size
    num_bytes = kv_cache_bytes(config.kv_cache, device)
    if num_bytes < block_bytes:
        raise ModelError(
            f"engine.kv_cache of {format_bytes(num_bytes)} does not hold one block ({format_bytes(block_bytes)}); raise it"
        )
    return num_bytes // block_bytes


def kv_cache_bytes(kv_cache: str, device: str) -> int:
    """`auto`: a share of the memory that is free now."""
    if kv_cache != "auto":
        return parse_bytes(kv_cache)
    free = psutil.virtual_memory().available if device == "cpu" else torch.cuda.mem_get_info(device)[0]
    return int(free * FREE_MEMORY_SHARE)


def default_num_threads(num_workers: int) -> int:
    """Processor cores of this machine for each of its workers."""
    return max(1, len(os.sched_getaffinity(0)) // num_workers) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
