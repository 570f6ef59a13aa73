"""Prompts as byte strings that sort as their token ids do, so that Arrow sorts and gathers them as plain memory."""

import numpy as np
import pyarrow as pa

TOKEN_BYTES = 4


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
