"""From configuration to a running engine: device, model, KV cache, attention backend."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

import psutil
import torch

from batchpaged.attention.backend import AttentionBackend
from batchpaged.attention.interface import NAME, register
from batchpaged.attention.layer_shape import LayerShape
from batchpaged.config.sizes import format_bytes, parse_bytes
from batchpaged.engine.allocator import keep_freed_memory
from batchpaged.engine.attention_check import check_attention
from batchpaged.engine.attention_choice import attention_backend, can_be_batch_invariant, choose_attention
from batchpaged.engine.engine import Engine, EngineLimits
from batchpaged.engine.gpu_build import exchange_for_batch_invariance, exchange_modules, graph_runner, measured_kv_bytes
from batchpaged.engine.grammar import Grammars, make_tokenizer
from batchpaged.engine.invariance import GPU_LENGTHS, LENGTHS, check_batch_invariance
from batchpaged.engine.model_runner import ModelRunner
from batchpaged.engine.replay import CudaGraphs
from batchpaged.engine.stop import StopCheck
from batchpaged.engine.tier_build import Tiers, build_tiers
from batchpaged.errors import ModelError
from batchpaged.models.adapters import Adapter
from batchpaged.models.kv_shape import kv_bytes_per_token
from batchpaged.models.layers import AttentionLayer, attention_layers
from batchpaged.models.load import load_model, load_tokenizer, resolve_dtype, stop_token_ids
from batchpaged.models.lora import AdapterRows, install_adapters

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from batchpaged.config import EngineConfig, ModelConfig
    from batchpaged.models.resolve import ResolvedModel

# Of the memory that is free once the model is loaded; the rest is for activations, and for other processes.
FREE_MEMORY_SHARE = 0.5


def build_engine(
    resolved: ResolvedModel,
    model_config: ModelConfig,
    config: EngineConfig,
    device: str,
    run_id: str,
    num_threads: int,
    adapters: Sequence[Adapter] = (),
) -> Engine:
    """Load the model and its adapters, and allocate its KV cache. Raises ModelError."""
    register()
    torch.set_num_threads(num_threads)
    tokenizer = load_tokenizer(resolved)
    dtype = resolve_dtype(_config_dtype(resolved), model_config.dtype, device)
    _check_attention(config, device, dtype)
    if device != "cpu":
        torch.cuda.set_device(device)  # of this thread: Triton's kernels run on the current one
    model = load_model(resolved, dtype=dtype, device=device, attn_implementation=NAME)
    adapter_rows = install_adapters(model, adapters) if adapters else None
    layers = attention_layers(model)
    _prepare(model, config, device, choose_attention(config, device, dtype, layers), num_threads)
    runner, num_blocks = _make_runner(model, config, model_config.max_model_len, layers, device, adapter_rows)
    if config.batch_invariant:
        vocab_size, lengths = model.get_input_embeddings().num_embeddings, LENGTHS if device == "cpu" else GPU_LENGTHS
        check_batch_invariance(runner, vocab_size, num_blocks, config.block_size, model_config.max_model_len, lengths)
    tiers = build_tiers(runner, config, num_blocks, model_config.max_model_len)
    limits = _limits(config, model_config.max_model_len, num_blocks, tiers, device)
    gc.collect()
    gc.freeze()  # nothing loaded so far goes away while the engine runs; looking through it again and again takes 0.2 s each time
    root = f"{run_id}|{resolved.identity}|{dtype}|{config.kv_dtype}".encode()
    eos, vocab_size = stop_token_ids(model, tokenizer), model.get_output_embeddings().weight.shape[0]
    grammars = Grammars(lambda: make_tokenizer(tokenizer, vocab_size, eos), num_threads)
    return Engine(runner, limits, StopCheck(tokenizer, eos), root, grammars, tiers.costs)


def _check_attention(config: EngineConfig, device: str, dtype: torch.dtype) -> None:
    """Raises ConfigError, or ModelError where it is the weights' type that does not go with it."""
    check_attention(config.attention, device)
    if config.batch_invariant and not can_be_batch_invariant(config, device, dtype):
        raise ModelError(
            "engine.batch_invariant needs Triton's kernels on a GPU, or float32 and kv_dtype: auto on a CPU, and not attention: torch; "
            "set it to false"
        )


def _limits(config: EngineConfig, max_model_len: int, num_blocks: int, tiers: Tiers, device: str) -> EngineLimits:
    return EngineLimits(
        num_blocks=num_blocks,
        block_size=config.block_size,
        max_batch_tokens=config.max_batch_tokens,
        max_sequences=config.max_sequences,
        max_model_len=max_model_len,
        prefix_cache=config.prefix_cache,
        steps_ahead=steps_ahead(config.async_scheduling, device),
        num_frames=tiers.num_frames,
        num_disk_slots=tiers.num_disk_slots,
    )


def steps_ahead(async_scheduling: Literal["auto"] | bool, device: str) -> int:
    """A CPU that plans the next step takes the time for it from the one that runs."""
    is_async = device != "cpu" if async_scheduling == "auto" else async_scheduling
    return int(is_async)


def _make_runner(
    model: PreTrainedModel,
    config: EngineConfig,
    max_model_len: int,
    layers: tuple[AttentionLayer, ...],
    device: str,
    adapter_rows: AdapterRows | None,
) -> tuple[ModelRunner, int]:
    """-> the runner, and the number of blocks of its pool"""
    shapes, dtype = tuple(layer.shape for layer in layers), model.dtype

    def make_backend(num_blocks: int) -> AttentionBackend:
        return attention_backend(config, layers, num_blocks, dtype, device)

    def measure() -> int:
        block_bytes = kv_bytes_per_token(shapes, dtype, config.kv_dtype) * config.block_size
        return measured_kv_bytes(model, config, max_model_len, make_backend, block_bytes, adapter_rows)

    if device == "cpu":
        num_blocks = num_kv_blocks(config, shapes, dtype, lambda: free_kv_bytes(device))
        return ModelRunner(model, make_backend(num_blocks), adapter_rows=adapter_rows), num_blocks
    num_blocks = num_kv_blocks(config, shapes, dtype, measure)
    if config.cuda_graphs and adapter_rows is None:  # a graph cannot know whose rows a step has
        max_sequences = min(config.max_sequences, config.max_batch_tokens)
        backend = make_backend(num_blocks + 1)
        return graph_runner(model, backend, config.block_size, max_sequences, CudaGraphs()), num_blocks
    return ModelRunner(model, make_backend(num_blocks), adapter_rows=adapter_rows), num_blocks


def _prepare(model: PreTrainedModel, config: EngineConfig, device: str, attention: str, num_threads: int) -> None:
    """Exchange modules for faster ones, or for such as give the same bits in any batch. `attention`: the backend's kind."""
    if config.batch_invariant and attention == "triton":
        exchange_for_batch_invariance(model)
    elif device == "cpu":
        _prepare_cpu(model, config, num_threads)
    elif config.fused_modules:
        exchange_modules(model)


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


def choose_device(requested: str, choose_gpu: Callable[[int], int] = lambda num_gpus: 0) -> str:
    """`auto` takes a GPU if there is one. `choose_gpu`: from how many there are, which one."""
    if requested == "cpu" or (requested == "auto" and not torch.cuda.is_available()):
        return "cpu"
    if not torch.cuda.is_available():
        raise ModelError("engine.device is cuda, but torch sees no GPU here; use auto or cpu")
    return f"cuda:{choose_gpu(torch.cuda.device_count())}"


def num_kv_blocks(
    config: EngineConfig, layers: tuple[LayerShape, ...], dtype: torch.dtype, auto_bytes: Callable[[], int]
) -> int:
    """Blocks of the pool. `auto_bytes`: asked where the cache is `auto`. Raises ModelError where not even one block fits."""
    if isinstance(config.kv_cache, int):
        return config.kv_cache
    block_bytes = kv_bytes_per_token(layers, dtype, config.kv_dtype) * config.block_size
    num_bytes = auto_bytes() if config.kv_cache == "auto" else parse_bytes(config.kv_cache)
    if num_bytes < block_bytes:
        raise ModelError(
            f"engine.kv_cache of {format_bytes(num_bytes)} does not hold one block ({format_bytes(block_bytes)}); raise it"
        )
    return num_bytes // block_bytes


def free_kv_bytes(device: str) -> int:
    """A share of the memory that is free now; for a GPU this is an estimate, before the model is there."""
    free = psutil.virtual_memory().available if device == "cpu" else torch.cuda.mem_get_info(device)[0]
    return int(free * FREE_MEMORY_SHARE)


def default_num_threads(num_workers: int) -> int:
    """Processor cores of this machine for each of its workers."""
    return max(1, len(os.sched_getaffinity(0)) // num_workers) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
