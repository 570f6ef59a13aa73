"""Are the ids unique? Decided exactly, reading only that column, in bounded memory however many rows there are.

Every id becomes one 64-bit key (an integer itself, the hash of anything else). Keys go to 256 temporary files by their
top bits; each file then fits in memory and is sorted. Keys met twice are only candidates: the ids behind them are
compared.
"""

from __future__ import annotations

import difflib
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
import xxhash

from batchpaged.dataset.schema import is_text

_NUM_BUCKETS = 256
_FLUSH_KEYS = 1_000_000  # keys (8 MB) gathered before they are spread over the files
_MAX_CANDIDATES = 1000  # keys whose ids are compared; more than enough to show that ids repeat
_LIKE_AN_ID = re.compile(r"[^\s\\]{1,40}")  # short, without white space

ReadColumn = Callable[[str], Iterable[pa.Table]]  # all rows of one column, some thousand at a time; may be asked twice


def ids_as_text(ids: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Row ids as reports show them."""
    try:
        return ids.cast(pa.string())
    except pa.ArrowInvalid:  # binary ids that are no UTF-8
        return pa.array([value.decode(errors="backslashreplace") for value in ids.to_pylist()], pa.string())


def find_id_problems(schema: pa.Schema, column: str, read: ReadColumn) -> list[str]:
    """What is wrong with this column as an id: missing, of a wrong type, null somewhere, or not unique."""
    if column not in schema.names:
        near = difflib.get_close_matches(column, schema.names, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"columns: {', '.join(schema.names)}"
        return [f"input.id_column: no column {column!r}; {hint}"]
    kind = schema.field(column).type
    if not _can_be_id(kind):
        return [f"input.id_column: column {column!r} is {kind}; ids are strings or integers"]
    counter = _IdCounter(column, read)
    repeated = counter.find_repeated()
    problems = []
    if counter.num_nulls:
        problems.append(f"input.id_column: column {column!r} is null in {counter.num_nulls} of {counter.num_rows} rows")
    if repeated:
        problems.append(f"input.id_column: column {column!r} is not unique: {_describe_repeated(repeated)}")
    return problems


def _describe_repeated(ids: list[object]) -> str:
    """How many, and the first one if it looks like an id: a column that is none may hold prompt text."""
    number = f"{len(ids)} or more" if len(ids) >= _MAX_CANDIDATES else str(len(ids))
    words = "1 id occurs more than once" if len(ids) == 1 else f"{number} ids occur more than once"
    first = ids_as_text(pa.array(ids[:1]))[0].as_py()
    return f"{words}, such as {first}" if _LIKE_AN_ID.fullmatch(first) else words


def _can_be_id(kind: pa.DataType) -> bool:
    if pt.is_dictionary(kind):
        return _can_be_id(kind.value_type)
    is_bytes = pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind)
    return is_text(kind) or pt.is_integer(kind) or is_bytes


class _IdCounter:
    """One pass over the column for the keys; a second one only if keys repeat."""

    def __init__(self, column: str, read: ReadColumn) -> None:
        self._column = column
        self._read = read
        self.num_rows = 0  # known after find_repeated, as is the next one
        self.num_nulls = 0

    def find_repeated(self) -> list[object]:
        """The different ids that occur more than once, the earliest first; at most _MAX_CANDIDATES of them are looked at."""
        with tempfile.TemporaryDirectory(prefix="batchpaged-ids-") as folder:
            candidates = self._find_repeated_keys(Path(folder))
        if len(candidates) == 0:
            return []
        counts: Counter[object] = Counter()
        for values in map(_values, self._read(self._column)):
            counts.update(values.filter(pa.array(np.isin(_keys(values), candidates))).to_pylist())
        return [value for value, count in counts.items() if count > 1]

    def _find_repeated_keys(self, folder: Path) -> np.ndarray:
        """Sorted keys that occur more than once, at most _MAX_CANDIDATES.  uint64 [num_keys]"""
        num_pending = 0
        pending: list[np.ndarray] = []
        for table in self._read(self._column):
            values = _values(table)
            self.num_rows += table.num_rows
            self.num_nulls += table.num_rows - len(values)
            pending.append(_keys(values))
            num_pending += len(values)
            if num_pending >= _FLUSH_KEYS:
                _spill(pending, folder)
                pending, num_pending = [], 0
        _spill(pending, folder)
        found = [_repeated(np.fromfile(path, np.uint64)) for path in sorted(folder.iterdir())]
        return np.concatenate([*found, np.empty(0, np.uint64)])[:_MAX_CANDIDATES]


def _values(table: pa.Table) -> pa.ChunkedArray:
    """Of its only column, without nulls, never as a dictionary."""
    values = table.column(0).drop_null()
    return values.cast(values.type.value_type) if pt.is_dictionary(values.type) else values


def _spill(pending: list[np.ndarray], folder: Path) -> None:
    """Append keys to the files of their buckets."""
    keys = np.sort(np.concatenate([np.empty(0, np.uint64), *pending]))
    edges = np.arange(1, _NUM_BUCKETS, dtype=np.uint64) << np.uint64(56)
    for bucket, piece in enumerate(np.split(keys, np.searchsorted(keys, edges))):
        if len(piece):
            with open(folder / f"{bucket:03}", "ab") as file:
                piece.tofile(file)


def _repeated(keys: np.ndarray) -> np.ndarray:
    keys = np.sort(keys)
    return np.unique(keys[1:][keys[1:] == keys[:-1]])[:_MAX_CANDIDATES]


def _keys(values: pa.ChunkedArray) -> np.ndarray:
    if pt.is_integer(values.type):
        # A multiplication spreads consecutive integers over the buckets; it is odd, so different ids keep different
        # keys.
        integers = values.cast(pa.uint64() if pt.is_uint64(values.type) else pa.int64()).to_numpy()
        return integers.astype(np.uint64, copy=False) * np.uint64(0x9E3779B97F4A7C15)
    payload = pc.cast(values, pa.large_binary())
    hashes = (xxhash.xxh3_64_intdigest(value) for value in payload.to_pylist())
    return np.fromiter(hashes, np.uint64, len(payload))
