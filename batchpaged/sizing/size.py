"""The arithmetic of `batchpaged size`, with the engine's own formulas for KV bytes and for its share of a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from batchpaged.attention.layer_shape import LayerShape
from batchpaged.engine.gpu_memory import GpuMemory, kv_cache_share
from batchpaged.errors import ConfigError
from batchpaged.models.find_config import to_config
from batchpaged.models.kv_shape import kv_bytes_per_token, layer_shapes, layer_windows
from batchpaged.models.load import resolve_dtype
from batchpaged.models.shell import num_parameters
from batchpaged.models.support import check_supported

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
StoredAs = Literal["auto", "int8", "fp8"]
KV_DTYPES = ("auto", "int8", "fp8")


@dataclass(frozen=True)
class GpuFit:
    """What fits on one GPU beside the weights."""

    memory: int  # bytes, of the GPU
    fraction: float  # of them that may be used
    step: int  # bytes set aside for a worst-case step
    kv_bytes: int  # that are left for the KV cache
    num_blocks: int
    num_sequences: int  # of the length asked for, sharing nothing


@dataclass(frozen=True)
class ModelSize:
    """Of one model; bytes unless it says otherwise."""

    model_type: str
    num_parameters: int
    dtype: str  # of the weights
    weights: int
    layers: tuple[LayerShape, ...]
    num_query_heads: int
    stored_as: StoredAs  # keys and values; auto: in dtype
    bytes_per_token: int
    bytes_per_token_ungrouped: int  # if every query head had keys and values of its own
    block_size: int  # tokens
    seq_len: int  # tokens
    num_positions: int | None  # the longest sequence of this model, if its configuration says
    blocks_per_sequence: int
    windows: tuple[int | None, ...]  # tokens that each layer looks back; None: all
    windowed_sequence: int  # if a layer kept no block that has left its window; the engine keeps all
    fit: GpuFit | None

    @property
    def block(self) -> int:
        return self.bytes_per_token * self.block_size

    @property
    def sequence(self) -> int:
        """What the engine takes for one that shares nothing."""
        return self.block * self.blocks_per_sequence


def kv_cache_bytes(
    config: PreTrainedConfig | Mapping[str, Any] | str | Path,
    seq_len: int = 1,
    num_sequences: int = 1,
    *,
    dtype: Dtype = "auto",
    kv_dtype: StoredAs = "auto",
    block_size: int = 1,
) -> int:
    """Bytes of KV cache that `num_sequences` sequences of `seq_len` tokens take if they share nothing.

    `config`: a model's configuration, the content of its config.json, or what `batchpaged size` takes. `dtype` as in a
    pipeline's model.dtype, `auto` as on a GPU; `kv_dtype` as in engine.kv_dtype. Sequences are rounded up to blocks of
    `block_size` tokens. Raises ModelError, and ConfigError for a number below 1.
    """
    _check_counts(seq_len=seq_len, num_sequences=num_sequences, block_size=block_size)
    checked = _supported(config)
    per_token = kv_bytes_per_token(layer_shapes(checked), _dtype(checked, dtype), _kv_dtype(kv_dtype))
    return num_sequences * -(-seq_len // block_size) * block_size * per_token


def size_model(
    config: PreTrainedConfig | Mapping[str, Any] | str | Path,
    *,
    gpu_memory: int | None = None,
    seq_len: int = 2048,
    dtype: Dtype = "auto",
    kv_dtype: StoredAs = "auto",
    block_size: int = 16,
    gpu_memory_fraction: float = 0.9,
    step_memory: int = 2**30,
) -> ModelSize:
    """Sizes of a model, and with `gpu_memory` (bytes) what fits. Raises ModelError or ConfigError."""
    _check_counts(seq_len=seq_len, block_size=block_size)
    checked, kv_dtype = _supported(config), _kv_dtype(kv_dtype)
    number, shapes = _dtype(checked, dtype), layer_shapes(checked)
    ungrouped = [replace(shape, num_kv_heads=checked.num_attention_heads) for shape in shapes]
    windows = layer_windows(checked)
    parameters = num_parameters(checked)
    size = ModelSize(
        model_type=checked.model_type,
        num_parameters=parameters,
        dtype=str(number).removeprefix("torch."),
        weights=parameters * number.itemsize,
        layers=tuple(shapes),
        num_query_heads=checked.num_attention_heads,
        stored_as=kv_dtype,
        bytes_per_token=kv_bytes_per_token(shapes, number, kv_dtype),
        bytes_per_token_ungrouped=kv_bytes_per_token(ungrouped, number, kv_dtype),
        block_size=block_size,
        seq_len=seq_len,
        num_positions=getattr(checked, "max_position_embeddings", None),
        blocks_per_sequence=-(-seq_len // block_size),
        windows=tuple(windows),
        windowed_sequence=_windowed_bytes(shapes, windows, number, kv_dtype, seq_len, block_size),
        fit=None,
    )
    return size if gpu_memory is None else replace(size, fit=_fit(size, gpu_memory, gpu_memory_fraction, step_memory))


def _fit(size: ModelSize, memory: int, fraction: float, step: int) -> GpuFit:
    kv_bytes = kv_cache_share(GpuMemory(memory, memory - size.weights, step), fraction)
    num_blocks = kv_bytes // size.block
    return GpuFit(memory, fraction, step, kv_bytes, num_blocks, num_blocks // size.blocks_per_sequence)


def _windowed_bytes(
    shapes: Sequence[LayerShape],
    windows: Sequence[int | None],
    dtype: torch.dtype,
    kv_dtype: StoredAs,
    seq_len: int,
    block_size: int,
) -> int:
    """A window that ends inside a block needs that block too."""
    total, num_blocks = 0, -(-seq_len // block_size)
    for shape, window in zip(shapes, windows, strict=True):
        kept = num_blocks if window is None else min(num_blocks, -(-(window - 1) // block_size) + 1)
        total += kept * block_size * kv_bytes_per_token([shape], dtype, kv_dtype)
    return total


def _supported(config: PreTrainedConfig | Mapping[str, Any] | str | Path) -> PreTrainedConfig:
    checked = to_config(config)
    check_supported(checked, max_model_len=1)
    return checked


def _dtype(config: PreTrainedConfig, requested: Dtype) -> torch.dtype:
    if requested not in ("auto", "float32", "bfloat16", "float16"):
        raise ConfigError(f"dtype: {requested!r} is not auto, float32, bfloat16 or float16")
    return resolve_dtype(getattr(config, "dtype", None), requested, "cuda")


def _kv_dtype(requested: StoredAs) -> StoredAs:
    if requested not in KV_DTYPES:
        raise ConfigError(f"kv_dtype: {requested!r} is not {', '.join(KV_DTYPES[:-1])} or {KV_DTYPES[-1]}")
    return requested


def _check_counts(**counts: int) -> None:
    for name, count in counts.items():
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ConfigError(f"{name}: {count!r} is not a whole number of 1 or more")
