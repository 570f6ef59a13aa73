"""Checks, grid and configuration of paged attention."""

import math

import torch
import triton

from batchpaged.kernels.triton.kv_format import PLAIN, cache_format, kernel_view
from batchpaged.kernels.triton.launching import Example, check, launch, target_of, without_memory
from batchpaged.kernels.triton.paged_attention.arguments import TILE_FIELDS, PagedCache, Results, Runs, Scoring
from batchpaged.kernels.triton.paged_attention.config import choose_config
from batchpaged.kernels.triton.paged_attention.kernel import attend_tiles as kernel
from batchpaged.kernels.triton.paged_attention.tiling import DECODE_ROWS, GROUP_ROWS, PREFILL_ROWS

FP8 = torch.float8_e4m3fn
SMALLEST_DIM = 16  # of a matrix instruction


def attend_tiles(
    query: torch.Tensor,  # [num_tokens, num_heads, head_dim], last dimension contiguous
    cache: PagedCache,
    tiles: torch.Tensor,  # int32 [num_tiles, TILE_FIELDS]: see attention/tiles.py
    tile_rows: int,  # most rows of these tiles; one of Tiling.tile_rows
    runs: Runs,
    scoring: Scoring,
    results: Results,
    skips_mask: bool = True,  # of Tiling
) -> None:
    """Every tile's queries attend to its keys; final tiles write the output, others partial results. Raises ValueError."""
    _check(query, cache, tiles, tile_rows, results)
    _, block_size, num_kv_heads, head_dim = cache.keys.shape
    value_dim, repeats = cache.values.shape[3], query.shape[1] // num_kv_heads
    padded, padded_value = _padded(head_dim), _padded(value_dim)
    format = cache_format(cache.keys)
    target = target_of(query)
    config = choose_config(target, tile_rows, max(padded, padded_value), query.element_size(), format != PLAIN)
    softcap = scoring.softcap or 1.0
    precision = "ieee" if target.backend == "hip" else "tf32x3"  # of float32: as three products, where a single one is short
    launch(
        kernel, (len(tiles) * num_kv_heads,),
        query, kernel_view(cache.keys), kernel_view(cache.values), cache.key_scales, cache.value_scales, scoring.sinks,
        results.output, results.partial_output, results.partial_lse,
        tiles, runs.blocks, runs.tokens, runs.positions, runs.partials, query.stride(0), query.stride(1),
        (scoring.softcap or scoring.scaling) / math.log(2), scoring.scaling / softcap, scoring.sliding_window or 0,
        NUM_KV_HEADS=num_kv_heads, REPEATS=repeats, HEAD_DIM=head_dim, VALUE_DIM=value_dim, BLOCK_SIZE=block_size,
        HAS_WINDOW=scoring.sliding_window is not None, HAS_SOFTCAP=scoring.softcap is not None,
        HAS_SINKS=scoring.sinks is not None, FORMAT=format, SKIPS_MASK=config.skips_mask and skips_mask,
        PRECISION=precision, BLOCK_M=tile_rows, BLOCK_N=config.block_n, MASKED_BLOCK_N=config.masked_block_n,
        BLOCK_D=padded, BLOCK_V=padded_value,
        num_warps=config.num_warps, num_stages=config.num_stages,
    )  # fmt: skip


def _padded(dim: int) -> int:
    return max(SMALLEST_DIM, triton.next_power_of_2(dim))


def _check(query: torch.Tensor, cache: PagedCache, tiles: torch.Tensor, tile_rows: int, results: Results) -> None:
    num_tokens, num_heads, head_dim = query.shape
    num_kv_heads, value_dim = cache.keys.shape[2], cache.values.shape[3]
    check(query.stride(2) == 1, "a head's query must lie in one piece")
    check(cache.keys.is_contiguous() and cache.values.is_contiguous(), "a cache must be contiguous")
    check(cache.keys.shape[:3] == cache.values.shape[:3], "keys and values must have the same slots and heads")
    check(head_dim == cache.keys.shape[3], f"queries of {head_dim} for keys of {cache.keys.shape[3]}")
    check(num_heads % num_kv_heads == 0, f"{num_heads} query heads for {num_kv_heads} K/V heads")
    check(num_heads // num_kv_heads <= tile_rows, f"{num_heads // num_kv_heads} query heads for a K/V head, of {tile_rows}")
    is_plain = cache_format(cache.keys) == PLAIN
    check(cache_format(cache.keys) == cache_format(cache.values), "keys and values must be stored in one format")
    check(is_plain == (cache.key_scales is None), f"a cache of {cache.keys.dtype} comes with scales, or without")
    check(tiles.ndim == 2 and tiles.shape[1] == TILE_FIELDS and tiles.is_contiguous(), f"tiles of shape {tiles.shape}")
    check(results.output.shape == (num_tokens, num_heads, value_dim), f"an output of shape {results.output.shape}")
    check(results.output.is_contiguous() and results.partial_output.is_contiguous(), "results must be contiguous")


def _example(
    rows: int,
    head_dim: int,
    dtype: torch.dtype,
    value_dim: int | None = None,
    cache_dtype: torch.dtype | None = None,
    skips_mask: bool = True,
    **scoring,
) -> None:
    """8 K/V heads with 4 query heads each, blocks of 16."""
    value_dim, kind = value_dim or head_dim, cache_dtype or dtype
    keys, values = (without_memory(1024, 16, 8, dim, dtype=kind) for dim in (head_dim, value_dim))
    scales = without_memory(1024, 16, 8, dtype=torch.float32) if cache_dtype is not None else None
    indices = without_memory(4096, dtype=torch.int32)
    attend_tiles(
        without_memory(256, 32, head_dim, dtype=dtype),
        PagedCache(keys, values, scales, scales),
        without_memory(64, TILE_FIELDS, dtype=torch.int32),
        rows,
        Runs(indices, indices, indices, indices),
        Scoring(head_dim**-0.5, **scoring),
        Results(
            without_memory(256, 32, value_dim, dtype=dtype),
            without_memory(512, 32, value_dim, dtype=torch.float32),
            without_memory(512, 32, dtype=torch.float32),
        ),
        skips_mask,
    )


EXAMPLES = (
    Example("decode, heads of 128", lambda dtype: _example(DECODE_ROWS, 128, dtype)),
    Example("decode, heads of 256", lambda dtype: _example(DECODE_ROWS, 256, dtype)),
    Example("decode, heads of 128 in int8", lambda dtype: _example(DECODE_ROWS, 128, dtype, cache_dtype=torch.int8)),
    Example("decode, heads of 64, window", lambda dtype: _example(DECODE_ROWS, 64, dtype, sliding_window=128)),
    Example("decode, heads of 64, sinks", lambda dtype: _example(DECODE_ROWS, 64, dtype, sinks=without_memory(32, dtype=dtype))),
    Example("batch-invariant, heads of 128", lambda dtype: _example(GROUP_ROWS, 128, dtype, skips_mask=False)),
    Example("shared by few, heads of 128", lambda dtype: _example(GROUP_ROWS, 128, dtype)),
    Example("shared by few, heads of 256", lambda dtype: _example(GROUP_ROWS, 256, dtype)),
    Example("prefill, heads of 64", lambda dtype: _example(PREFILL_ROWS, 64, dtype)),
    Example("prefill, heads of 96", lambda dtype: _example(PREFILL_ROWS, 96, dtype)),
    Example("prefill, heads of 128", lambda dtype: _example(PREFILL_ROWS, 128, dtype)),
    Example("prefill, heads of 192 and 128", lambda dtype: _example(PREFILL_ROWS, 192, dtype, value_dim=128)),
    Example("prefill, heads of 256", lambda dtype: _example(PREFILL_ROWS, 256, dtype)),
    Example("prefill, heads of 256, softcap", lambda dtype: _example(PREFILL_ROWS, 256, dtype, softcap=50.0)),
    Example("prefill, heads of 128 in fp8", lambda dtype: _example(PREFILL_ROWS, 128, dtype, cache_dtype=FP8)),
)
