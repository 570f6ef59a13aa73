"""Prompts as byte strings that sort as their token ids do, so that Arrow sorts and gathers them as plain memory."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

TOKEN_BYTES = 4
_MARK_SHIFT = 22
MAX_TOKEN_ID = 1 << _MARK_SHIFT  # of models with adapters; what lies above says which adapter


def as_keys(prompts: pa.ListArray) -> pa.LargeBinaryArray:
    """list<int32> without nulls -> each prompt's token ids, big-endian, one after the other."""
    offsets = prompts.offsets.to_numpy().astype(np.int64)
    return _swapped(offsets - offsets[0], prompts.values.to_numpy()[offsets[0] : offsets[-1]])


def as_little_endian(keys: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    """The same prompts as int32 in the byte order of files; what `as_prompts` reads."""
    return _swapped(key_offsets(keys), key_values(keys))


def as_prompts(values: pa.Array) -> pa.ListArray:
    """Little-endian byte strings (null: a failed row) -> list<int32>."""
    values = values.cast(pa.large_binary())
    mask = values.is_null() if values.null_count else None
    return pa.ListArray.from_arrays(key_offsets(values).astype(np.int32), key_values(values).view("<i4"), mask=mask)


def marked(keys: pa.LargeBinaryArray, adapters: pa.Array) -> pa.LargeBinaryArray:
    """The same with each row's adapter (int16, null: none) in the upper bits of its first token.

    So prompts of different adapters share nothing, and sort by adapter first, while lengths and all else stay as they are.
    """
    return keys if adapters.null_count == len(adapters) else _changed(keys, adapters, lambda firsts, marks: firsts | marks)


def unmarked(keys: pa.LargeBinaryArray, adapters: pa.Array) -> pa.LargeBinaryArray:
    """What `marked` was given."""
    if adapters.null_count == len(adapters):
        return keys
    return _changed(keys, adapters, lambda firsts, marks: np.where(marks, firsts & (MAX_TOKEN_ID - 1), firsts))


def mark(token_ids: list[int], adapter: int | None) -> list[int]:
    """One prompt, as `marked` does it."""
    return token_ids if adapter is None else [token_ids[0] | (adapter + 1) << _MARK_SHIFT, *token_ids[1:]]


def _changed(
    keys: pa.LargeBinaryArray, adapters: pa.Array, change: Callable[[np.ndarray, np.ndarray], np.ndarray]
) -> pa.LargeBinaryArray:
    """`change`: (first tokens, marks) -> first tokens, of the rows that have a token"""
    offsets = key_offsets(keys)
    values = key_values(keys).view(">u4").astype("<u4")
    has_tokens = np.diff(offsets) > 0
    firsts = (offsets - offsets[0])[:-1][has_tokens]
    marks = (pc.fill_null(adapters, -1).to_numpy(zero_copy_only=False).astype(np.uint32) + 1) << _MARK_SHIFT
    values[firsts] = change(values[firsts], marks[has_tokens])
    return _swapped(offsets - offsets[0], values)


def key_offsets(keys: pa.LargeBinaryArray) -> np.ndarray:
    """int64 [n + 1]: where each prompt begins in `key_values`, in tokens."""
    buffer = keys.buffers()[1]
    if len(keys) == 0 or buffer is None:
        return np.zeros(len(keys) + 1, dtype=np.int64)
    offsets = np.frombuffer(buffer, np.int64)[keys.offset : keys.offset + len(keys) + 1]
    return (offsets - offsets[0]) // TOKEN_BYTES


def key_values(keys: pa.LargeBinaryArray) -> np.ndarray:
    """uint32 [tokens]: all prompts one after the other, in the byte order they are stored in. Shares their memory."""
    data = keys.buffers()[2]
    if len(keys) == 0 or data is None:
        return np.zeros(0, dtype=np.uint32)
    offsets = np.frombuffer(keys.buffers()[1], np.int64)
    start, end = offsets[keys.offset], offsets[keys.offset + len(keys)]
    return np.frombuffer(data, np.uint32, (end - start) // TOKEN_BYTES, start)


def num_common(a: bytes, b: bytes) -> int:
    """Leading tokens that two keys have in common."""
    n = min(len(a), len(b)) // TOKEN_BYTES
    differs = np.frombuffer(a, np.uint32, n) != np.frombuffer(b, np.uint32, n)
    return int(differs.argmax()) if differs.any() else n


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """The column in one piece. `combine_chunks` alone copies a single chunk too."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _swapped(offsets: np.ndarray, values: np.ndarray) -> pa.LargeBinaryArray:
    """Byte strings of `values` [tokens], four bytes each, their order reversed; `offsets` [n + 1] are in tokens."""
    data = pa.allocate_buffer(len(values) * TOKEN_BYTES)  # of Arrow's pool, which gives used memory again
    np.copyto(np.frombuffer(data, values.dtype.newbyteorder()), values)
    buffers = [None, pa.py_buffer(offsets * TOKEN_BYTES), data]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)
