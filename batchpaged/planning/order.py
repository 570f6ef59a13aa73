"""The order in which prompts are computed: lexicographic by token ids.

That is the depth-first order of the prefix tree, so every prompt follows the one it shares most with, and a cache that
holds one longest prompt is enough to compute each shared token once.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batchpaged.planning.keys import as_keys, key_offsets, key_values, num_common

_WINDOW = 64  # tokens compared at a time
_BLOCK_ROWS = 1024  # neighbours compared at a time: few enough to stay in the processor's cache
_BLOCK_TOKENS = 1 << 20


@dataclass(frozen=True)
class Order:
    """Prompts in planned order."""

    rows: np.ndarray  # int64 [n]: which input row comes i-th
    num_tokens: np.ndarray  # int64 [n]: its prompt tokens
    num_shared: np.ndarray  # int64 [n]: leading tokens it shares with the prompt before it; 0 for the first

    def __len__(self) -> int:
        return len(self.rows)


def plan_order(prompts: pa.ListArray) -> Order:
    """Sort prompts (list<int32>, no nulls) by token ids; equal prompts keep their input order."""
    return order_keys(as_keys(prompts))


def order_keys(keys: pa.LargeBinaryArray) -> Order:
    """The same for prompts that are keys already."""
    rows = pc.sort_indices(keys).to_numpy().astype(np.int64)  # stable
    num_tokens = np.diff(key_offsets(keys))[rows]
    return Order(rows, num_tokens, _num_shared(keys, rows, num_tokens))


def _num_shared(keys: pa.LargeBinaryArray, rows: np.ndarray, num_tokens: np.ndarray) -> np.ndarray:
    num_shared = np.zeros(len(rows), dtype=np.int64)
    for start, end in _blocks(num_tokens):
        before = max(0, start - 1)
        num_shared[before + 1 : end] = _shared_by_neighbours(keys.take(pa.array(rows[before:end])))
    return num_shared


def _blocks(num_tokens: np.ndarray) -> Iterator[tuple[int, int]]:
    """Slices of at most _BLOCK_ROWS rows and about _BLOCK_TOKENS tokens."""
    ends = np.cumsum(num_tokens)
    start = 0
    while start < len(ends):
        limit = (ends[start - 1] if start else 0) + _BLOCK_TOKENS
        end = max(start + 1, min(start + _BLOCK_ROWS, int(np.searchsorted(ends, limit))))
        yield start, min(end, len(ends))
        start = end


def _shared_by_neighbours(keys: pa.LargeBinaryArray) -> np.ndarray:
    """Sorted prompts [n] -> int64 [n - 1]: leading tokens that each shares with the one before it."""
    starts, num_tokens = key_offsets(keys)[:-1], np.diff(key_offsets(keys))
    padded = np.concatenate([key_values(keys), np.zeros(_WINDOW, np.uint32)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, _WINDOW)
    num_shared = np.minimum(num_tokens[1:], num_tokens[:-1])  # at most
    rows = np.arange(len(num_shared))
    done = num_common(keys[0].as_py(), keys[-1].as_py())  # sorted: what the first and the last share, all share
    while len(rows := rows[num_shared[rows] > done]):
        differs = windows[starts[rows] + done] != windows[starts[rows + 1] + done]
        first = differs.argmax(1)
        is_over = differs[np.arange(len(rows)), first]
        num_shared[rows[is_over]] = np.minimum(num_shared[rows[is_over]], done + first[is_over])
        rows, done = rows[~is_over], done + _WINDOW
    return num_shared
