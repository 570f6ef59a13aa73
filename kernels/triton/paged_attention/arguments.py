"""What paged attention is called with; its launcher and its reference take the same."""

from dataclasses import dataclass

import torch

TILE_FIELDS = 8


@dataclass(frozen=True)
class PagedCache:
    """Keys and values of one layer."""

    keys: torch.Tensor  # [num_blocks, block_size, num_kv_heads, head_dim], contiguous
    values: torch.Tensor  # [num_blocks, block_size, num_kv_heads, value_dim], contiguous
    key_scales: torch.Tensor | None = None  # [num_blocks, block_size, num_kv_heads] float32, for caches of 8 bits
    value_scales: torch.Tensor | None = None


@dataclass(frozen=True)
class Runs:
    """What all tiles of a step refer to; int32."""

    blocks: torch.Tensor  # [any] block ids of all runs, one after another
    tokens: torch.Tensor  # [num_queries] row of the step's token axis
    positions: torch.Tensor  # [num_queries] of the same tokens in their sequences
    partials: torch.Tensor  # [num_queries] row of the partial results; any number where the tile is final


@dataclass(frozen=True)
class Scoring:
    """What a model asks of attention, see attention/backend.py."""

    scaling: float
    sliding_window: int | None = None
    softcap: float | None = None
    sinks: torch.Tensor | None = None  # [num_heads]


@dataclass(frozen=True)
class Results:
    """Where tiles write."""

    output: torch.Tensor  # [num_tokens, num_heads, value_dim], contiguous
    partial_output: torch.Tensor  # float32 [num_partials, num_heads, value_dim], contiguous
    partial_lse: torch.Tensor  # float32 [num_partials, num_heads], contiguous
