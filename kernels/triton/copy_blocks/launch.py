"""Checks, grid and configuration of copying slots between blocks."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from batchpaged.kernels.triton.copy_blocks.kernel import copy_blocks_kernel
from batchpaged.kernels.triton.launching import Example, check, launch, without_memory

WORDS = {8: tl.int64, 4: tl.int32, 2: tl.int16, 1: tl.int8}  # by bytes
WORDS_PER_PROGRAM = 1024


@dataclass(frozen=True)
class CacheTable:
    """Where caches lie, so that one launch serves all of them; made once."""

    caches: tuple[torch.Tensor, ...]  # each [num_blocks, block_size, ...], contiguous; kept, so that addresses stay right
    addresses: torch.Tensor  # int64 [num_caches]
    slot_words: torch.Tensor  # int64 [num_caches]
    block_size: int
    word_bytes: int  # the largest that every slot is a whole number of
    block_words: int  # of the largest block


def cache_table(caches: Sequence[torch.Tensor]) -> CacheTable:
    """Keys, values and scales of all layers, of any types and sizes. Raises ValueError."""
    block_size, device = caches[0].shape[1], caches[0].device
    check(all(cache.is_contiguous() and cache.shape[1] == block_size for cache in caches), "caches of one block size")
    slot_bytes = [math.prod(cache.shape[2:]) * cache.element_size() for cache in caches]
    word_bytes = math.gcd(8, *slot_bytes)
    return CacheTable(
        caches=tuple(caches),
        addresses=torch.tensor([cache.data_ptr() for cache in caches], dtype=torch.int64, device=device),
        slot_words=torch.tensor([size // word_bytes for size in slot_bytes], dtype=torch.int64, device=device),
        block_size=block_size,
        word_bytes=word_bytes,
        block_words=max(slot_bytes) // word_bytes * block_size,
    )


def copy_blocks(
    table: CacheTable,
    sources: torch.Tensor,  # [num_copies] int64, block ids
    targets: torch.Tensor,  # [num_copies] int64, no block twice
    num_slots: torch.Tensor,  # [num_copies] int64, leading slots to copy
    is_chained: bool,
) -> None:
    """Copy in all caches. `is_chained`: some block is a source and a target; all sources are then read first.

    Raises ValueError.
    """
    check(sources.shape == targets.shape == num_slots.shape, "a source, a target and a number of slots for each copy")
    for numbers in (sources, targets, num_slots):
        check(numbers.dtype is torch.int64 and numbers.is_contiguous(), "sources, targets and slots as contiguous int64")
    if not is_chained:
        _copy(table, table, sources, targets, num_slots)
        return
    num_copies = sources.shape[0]
    held = cache_table([cache.new_empty(num_copies, *cache.shape[1:]) for cache in table.caches])
    places = torch.arange(num_copies, device=sources.device)
    _copy(table, held, sources, places, num_slots)
    _copy(held, table, places, targets, num_slots)


def _copy(
    source: CacheTable, target: CacheTable, sources: torch.Tensor, targets: torch.Tensor, num_slots: torch.Tensor
) -> None:
    grid = sources.shape[0], len(source.caches), triton.cdiv(source.block_words, WORDS_PER_PROGRAM)
    launch(
        copy_blocks_kernel, grid,
        source.addresses, target.addresses, source.slot_words, sources, targets, num_slots, source.block_size,
        WORD=WORDS[source.word_bytes], BLOCK=WORDS_PER_PROGRAM, num_warps=4,
    )  # fmt: skip


def _example(dim: int, dtype: torch.dtype) -> None:
    cache, blocks = without_memory(1024, 16, 8, dim, dtype=dtype), without_memory(4, dtype=torch.int64)
    copy_blocks(cache_table([cache] * 64), blocks, blocks, blocks, is_chained=False)


EXAMPLES = (Example("64 caches", lambda dtype: _example(128, dtype)),)
