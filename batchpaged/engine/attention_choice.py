"""Which attention backend an engine gets."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch

from batchpaged.attention.backend import AttentionBackend
from batchpaged.attention.layer_shape import LayerShape
from batchpaged.attention.reference import TorchAttention
from batchpaged.attention.sharing import NEVER, SharingRule, estimate_sharing, measure_sharing
from batchpaged.errors import ConfigError
from batchpaged.kernels.triton.paged_attention.tiling import BATCH_INVARIANT, Tiling, default_tiling
from batchpaged.models.layers import AttentionLayer

if TYPE_CHECKING:
    from batchpaged.config import EngineConfig


def choose_attention(config: EngineConfig, device: str, dtype: torch.dtype, layers: tuple[AttentionLayer, ...]) -> str:
    """-> cpu | torch | triton. `auto`: compiled kernels where there are any for this device, type and model.

    `check_attention` has let the pipeline pass. Raises ConfigError where the model does not fit what is asked for.
    """
    attention = config.attention
    if attention == "auto" and device == "cpu":
        return "cpu" if dtype is torch.float32 and config.kv_dtype == "auto" else "torch"
    if attention == "torch" or (attention == "auto" and find_spec("triton") is None):
        return "torch"
    repeats = max(layer.num_heads // layer.shape.num_kv_heads for layer in layers)
    most = _tiling(config, dtype).most_rows
    if repeats <= most:
        return "triton"
    if config.batch_invariant:
        raise ConfigError(f"engine.batch_invariant: at most {most} query heads for a K/V head on a GPU, not {repeats}; set it to false")
    if attention == "triton":
        raise ConfigError(f"engine.attention: triton takes up to {most} query heads for a K/V head, not {repeats}; use torch")
    return "torch"


def _tiling(config: EngineConfig, dtype: torch.dtype) -> Tiling:
    return BATCH_INVARIANT if config.batch_invariant else default_tiling(dtype.itemsize)


def can_be_batch_invariant(config: EngineConfig, device: str, dtype: torch.dtype) -> bool:
    """Where every product of a model can be: with Triton's kernels, or by compiled loops in float32 on a CPU."""
    if config.attention == "triton" or device != "cpu":
        return config.attention != "torch" and find_spec("triton") is not None
    return config.attention == "auto" and config.kv_dtype == "auto" and dtype is torch.float32


def attention_backend(
    config: EngineConfig, layers: tuple[AttentionLayer, ...], num_blocks: int, dtype: torch.dtype, device: str
) -> AttentionBackend:
    """When to share runs of blocks is measured here, or estimated for a GPU. Never, where results may not depend on who shares."""
    kind = choose_attention(config, device, dtype, layers)
    shapes = tuple(layer.shape for layer in layers)
    make = partial(_make, kind, config, dtype, device)
    if config.batch_invariant:
        rule = NEVER
    elif kind == "triton":
        rule = estimate_sharing(shapes[0], layers[0].num_heads)
    else:
        one_layer = partial(make, shapes[:1])
        rule = measure_sharing(one_layer, shapes[0], layers[0].num_heads, config.block_size, dtype, device)
    return make(shapes, num_blocks, rule)


def _make(
    kind: str,
    config: EngineConfig,
    dtype: torch.dtype,
    device: str,
    shapes: tuple[LayerShape, ...],
    num_blocks: int,
    rule: SharingRule,
) -> AttentionBackend:
    if kind == "cpu":
        from batchpaged.attention.cpu import CpuAttention  # numba, which a GPU does not need

        return CpuAttention(shapes, num_blocks, config.block_size, rule)
    if kind == "triton":
        from batchpaged.attention.triton import TritonAttention  # triton, which a CPU does not need

        tiling = _tiling(config, dtype)
        return TritonAttention(shapes, num_blocks, config.block_size, dtype, device, rule, tiling, config.kv_dtype)
    return TorchAttention(shapes, num_blocks, config.block_size, dtype, device, rule, config.kv_dtype)
