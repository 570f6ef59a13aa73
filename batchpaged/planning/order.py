"""The order in which prompts are computed: lexicographic by token ids.

That is the depth-first order of the prefix tree, so every prompt follows the one it shares most with, and a cache that
holds one longest prompt is enough to compute each shared token once.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa


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
    offsets = prompts.offsets.to_numpy().astype(np.int64)
    values = prompts.values.to_numpy()
    starts, ends = offsets[:-1], offsets[1:]
    # Big-endian bytes compare as the token ids do, and as fast as memory allows.
    keys = values.astype(">u4").tobytes()
    rows = sorted(range(len(prompts)), key=lambda i: keys[starts[i] * 4 : ends[i] * 4])
    order = np.array(rows, dtype=np.int64)
    shared = [_num_shared(values, starts, ends, a, b) for a, b in zip(rows[:-1], rows[1:], strict=True)]
    return Order(order, (ends - starts)[order], np.array([0, *shared][: len(rows)], dtype=np.int64))


def _num_shared(values: np.ndarray, starts: np.ndarray, ends: np.ndarray, a: int, b: int) -> int:
    n = min(ends[a] - starts[a], ends[b] - starts[b])
    differs = values[starts[a] : starts[a] + n] != values[starts[b] : starts[b] + n]
    first = int(differs.argmax()) if n else 0
    return first if n and differs[first] else int(n)
