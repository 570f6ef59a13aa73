"""Work items of similar shape, padded into one batch of matrix products."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from batchpaged.attention.plan import WorkItem

# Most padded key slots of one batch: its gathered keys and values stay within a processor's cache.
MAX_BATCH_SLOTS = 8192


@dataclass(frozen=True)
class PaddedBatch:
    """B items, padded to Q queries and N blocks (P = block size; L = N * P key slots)."""

    query_index: np.ndarray  # int64 [B, Q], rows of the step's token axis; padding repeats row 0
    query_position: np.ndarray  # int64 [B, Q]; -1 at padding, which sees no key
    blocks: np.ndarray  # int64 [B, N]; padding repeats block 0
    key_position: np.ndarray  # int64 [B, L]; NO_KEY where a slot is not part of the item

    @property
    def is_query(self) -> np.ndarray:
        return self.query_position >= 0


NO_KEY = np.iinfo(np.int64).max


def pad_into_batches(items: Iterable[WorkItem], block_size: int) -> list[PaddedBatch]:
    """Group items by shape (rounded up, so that padding stays below about a quarter) and pad each group.

    Items of different levels stay apart: a query is at most once in a batch, so that partial results can be merged.
    """
    groups: dict[tuple[int, int, int], list[WorkItem]] = {}
    for item in items:
        key = (item.level, _round_up(len(item.query_indices)), _round_up(len(item.blocks)))
        groups.setdefault(key, []).append(item)
    batches = []
    for key in sorted(groups):
        group = groups[key]
        size = max(1, MAX_BATCH_SLOTS // (key[2] * block_size))
        batches += [_pad(group[at : at + size], block_size) for at in range(0, len(group), size)]
    return batches


def _round_up(n: int) -> int:
    """The next number with at most two significant bits after the first: 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20 ..."""
    step = 1 << max(0, n.bit_length() - 3)
    return -(-n // step) * step


def _pad(items: list[WorkItem], block_size: int) -> PaddedBatch:
    num_queries = max(len(item.query_indices) for item in items)
    num_blocks = max(len(item.blocks) for item in items)
    query_index = np.zeros((len(items), num_queries), dtype=np.int64)
    query_position = np.full((len(items), num_queries), -1, dtype=np.int64)
    blocks = np.zeros((len(items), num_blocks), dtype=np.int64)
    key_position = np.full((len(items), num_blocks * block_size), NO_KEY, dtype=np.int64)
    for row, item in enumerate(items):
        query_index[row, : len(item.query_indices)] = item.query_indices
        query_position[row, : len(item.query_indices)] = item.query_positions
        blocks[row, : len(item.blocks)] = item.blocks
        num_keys = item.key_end - item.key_start
        key_position[row, :num_keys] = np.arange(item.key_start, item.key_end)
    return PaddedBatch(query_index, query_position, blocks, key_position)
