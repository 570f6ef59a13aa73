"""`prompt.reorder`: each row's documents in the order that shares most over the whole data set.

Documents come by falling number of rows that hold them, ties by hash: the item order of FP-trees (Han, Pei and Yin,
"Mining frequent patterns without candidate generation", SIGMOD 2000), which keeps a tree of common beginnings small.
Rows with the same documents always get the same order, so each set of documents is computed at most once; beyond that
it is a heuristic, and `batchpaged plan` shows what it gives.

Counting takes one pass over the column, part by part. Counts are a pair of arrays sorted by hash, 16 bytes for each
different document.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from batchpaged.atomic import replacing
from batchpaged.dataset.cells import column_values
from batchpaged.errors import RowError

ORDER_TYPE = pa.list_(pa.int32())


@dataclass(frozen=True)
class DocumentCounts:
    """In how many rows each document occurs; what is not listed occurs in one."""

    hashes: np.ndarray  # uint64 [n], rising
    num_rows: np.ndarray  # int64 [n]

    def look_up(self, hashes: np.ndarray) -> np.ndarray:
        """-> int64, one count per hash."""
        if not len(self.hashes):
            return np.ones(len(hashes), np.int64)
        place = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
        return np.where(self.hashes[place] == hashes, self.num_rows[place], 1)

    def shared(self) -> DocumentCounts:
        """Without the documents of a single row, which need no entry."""
        is_shared = self.num_rows > 1
        return DocumentCounts(self.hashes[is_shared], self.num_rows[is_shared])

    def write(self, path: Path) -> None:
        with replacing(path) as temporary:
            pq.write_table(pa.table({"hash": self.hashes, "num_rows": self.num_rows}), temporary, compression="zstd")


def read_counts(path: Path) -> DocumentCounts:
    table = pq.read_table(path)
    return DocumentCounts(table["hash"].to_numpy(), table["num_rows"].to_numpy())


def count_documents(column: pa.ChunkedArray, name: str) -> DocumentCounts:
    """Counts of one part. A row that holds a document twice counts once."""
    rows, hashes = _hash_documents(column, name)
    pairs = np.unique(np.stack([rows.astype(np.uint64), hashes]), axis=1)
    return DocumentCounts(*np.unique(pairs[1], return_counts=True))


def merge_counts(counts: Iterable[DocumentCounts]) -> DocumentCounts:
    """The same whichever order they come in."""
    merged = DocumentCounts(np.array([], np.uint64), np.array([], np.int64))
    for more in counts:
        hashes, where = np.unique(np.concatenate([merged.hashes, more.hashes]), return_inverse=True)
        num_rows = np.zeros(len(hashes), np.int64)
        np.add.at(num_rows, where, np.concatenate([merged.num_rows, more.num_rows]))
        merged = DocumentCounts(hashes, num_rows)
    return merged


@dataclass(frozen=True)
class Reorder:
    """What `prompt.reorder` does to a table."""

    column: str
    counts: DocumentCounts

    @property
    def order_field(self) -> pa.Field:
        """The output column that records the order."""
        return order_field(self.column)

    def orders(self, column: pa.ChunkedArray) -> list[list[int]]:
        """For each row, the original indices of its documents in the order used; empty where there is no list."""
        rows, hashes = _hash_documents(column, self.column)
        starts = np.searchsorted(rows, np.arange(len(column) + 1))
        order = np.lexsort((hashes, -self.counts.look_up(hashes), rows)) - starts[rows]
        return [order[a:b].tolist() for a, b in zip(starts[:-1], starts[1:], strict=True)]

    def apply(self, table: pa.Table) -> pa.Table:
        """The table with the column in the order used; values are moved, never read and written again."""
        column = table[self.column]
        rows = [_put_in_order(chunk, orders) for chunk, orders in self._chunks(column)]
        ordered = pa.chunked_array(rows, pa.list_(column.type.value_type))
        return table.set_column(table.schema.get_field_index(self.column), self.column, ordered)

    def _chunks(self, column: pa.ChunkedArray) -> Iterable[tuple[pa.Array, list[list[int]]]]:
        return ((chunk, self.orders(pa.chunked_array([chunk]))) for chunk in column.chunks)


def order_field(column: str) -> pa.Field:
    return pa.field(f"{column}_order", ORDER_TYPE)


def _put_in_order(lists: pa.Array, orders: list[list[int]]) -> pa.ListArray:
    lengths = np.asarray(pa.compute.list_value_length(lists).fill_null(0), np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    # A list that could not be read has no order; it stays as it is and fails when it is rendered.
    whole = [order or range(n) for order, n in zip(orders, lengths.tolist(), strict=True)]
    indices = [start + i for start, order in zip(starts.tolist(), whole, strict=False) for i in order]
    values = lists.flatten().take(pa.array(indices, pa.int64()))
    return pa.ListArray.from_arrays(pa.array(starts, pa.int32()), values, mask=lists.is_null())


def _hash_documents(column: pa.ChunkedArray, name: str) -> tuple[np.ndarray, np.ndarray]:
    """-> (int64 row, uint64 hash) of each document, row after row."""
    rows: list[int] = []
    hashes: list[int] = []
    for row, documents in enumerate(column_values(column, name)):
        if documents is not None and not isinstance(documents, RowError):
            rows += [row] * len(documents)
            hashes += map(hash_document, documents)
    return np.array(rows, np.int64), np.array(hashes, np.uint64)


def hash_document(document: Any) -> int:
    """xxh3-64 of the whole document: of a struct, every field and its name."""
    text = document if isinstance(document, str) else f"\0{document!r}"
    return xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogatepass"))
