"""What texts, or token ids, have in common at the start."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Sharing:
    """Lengths are in items: token ids, or bytes of text."""

    num_items: int
    num_unique: int  # nodes of the prefix tree
    num_shared: np.ndarray  # int64 [rows]: leading items shared with the row before it in sorted order
    longest: np.ndarray  # int64 [rows]: most leading items that the row shares with any other row
    before: np.ndarray  # int64 [rows]: the row that comes before it in sorted order; itself for the first


def share_texts(texts: Sequence[bytes]) -> Sharing:
    return _share(texts, 1)


def share_tokens(prompts: Sequence[np.ndarray]) -> Sharing:
    """Token ids as big-endian bytes, which sort as the ids do."""
    return _share([prompt.astype(">u4").tobytes() for prompt in prompts], 4)


def _share(keys: Sequence[bytes], size: int) -> Sharing:
    order = np.array(sorted(range(len(keys)), key=keys.__getitem__), np.int64)
    shared = [num_common(keys[a], keys[b]) // size for a, b in zip(order[:-1], order[1:], strict=True)]
    with_previous = np.array([0, *shared][: len(keys)], np.int64)
    with_next = np.array([*shared, 0][: len(keys)], np.int64)
    num_shared, longest, before = np.empty_like(order), np.empty_like(order), np.arange(len(keys))
    num_shared[order] = with_previous
    longest[order] = np.maximum(with_previous, with_next)
    before[order[1:]] = order[:-1]
    num_items = sum(map(len, keys)) // size
    return Sharing(num_items, num_items - int(with_previous.sum()), num_shared, longest, before)


def num_common(a: bytes, b: bytes) -> int:
    """Leading bytes that are the same."""
    n = min(len(a), len(b))
    if a[:n] == b[:n]:
        return n
    return int((np.frombuffer(a, np.uint8, n) != np.frombuffer(b, np.uint8, n)).argmax())
