"""Which rows are looked at: all of a data set of some thousand rows; of a larger one, whole groups of similar rows.

A sample of rows picked one by one would tear groups apart, and with them the sharing that is to be measured. So rows
are picked by a key that rows with the same documents mostly have in common: the least hash over their longer sentences
(MinHash), leaving out sentences that many rows have, such as instructions. Keys are picked by their last bits: when the
sample is full, every second key goes, and its rows with it (distinct sampling, Gibbons, VLDB 2001). One pass, bounded
memory, and the same rows every time.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import xxhash

from batchpaged.config import Pipeline
from batchpaged.dataset.ids import ids_as_text
from batchpaged.dataset.prompts import PromptBuilder
from batchpaged.dataset.reorder import Reorder
from batchpaged.dataset.source import Source
from batchpaged.errors import RowError
from batchpaged.planning.diagnosis.fields import plain_messages
from batchpaged.planning.diagnosis.passages import sentences

MAX_ROWS = 20_000
MAX_BYTES = 32 << 20  # of texts
MAX_GROUP = 1_000  # rows of one key
_MIN_SENTENCE = 40  # characters; shorter ones stand in unrelated rows too
_COMMON = 0.05  # of rows: what more of them have says nothing about which rows belong together
_ID = "batchpaged row id"


@dataclass(frozen=True)
class Sample:
    table: pa.Table  # the columns that prompts are made from
    row_ids: list[str]
    num_rows: int  # looked at, those without a prompt included
    num_rows_total: int


def read_sample(pipeline: Pipeline, source: Source, builder: PromptBuilder, reorder: Reorder | None) -> Sample:
    """Rows that say something, in input order, as the prompts are made from them."""
    parts = _read_rows(pipeline, source, builder, reorder)
    if pipeline.prompt.token_ids_column is not None:
        return _take_first(parts, source.num_rows)
    return _take_groups(parts, builder, source.num_rows)


def _read_rows(
    pipeline: Pipeline, source: Source, builder: PromptBuilder, reorder: Reorder | None
) -> Iterator[pa.Table]:
    id_column = pipeline.input.id_column
    columns = builder.columns
    wanted = list(dict.fromkeys([*columns, *([id_column] if id_column else [])]))
    first = 0
    for rows in (rows for part in source.parts for rows in source.iter_tables(part, wanted)):
        ordinals = pa.array(range(first, first + rows.num_rows), pa.int64())
        ids = ids_as_text(rows[id_column] if id_column else ordinals)
        table = rows.select(columns) if reorder is None else reorder.apply(rows.select(columns))
        yield plain_messages(table, pipeline.prompt).append_column(_ID, ids)
        first += rows.num_rows


def _take_first(parts: Iterable[pa.Table], num_rows_total: int) -> Sample:
    taken: list[pa.Table] = []
    num_rows = 0
    for rows in parts:
        taken.append(rows.slice(0, MAX_ROWS - num_rows))
        num_rows += taken[-1].num_rows
        if num_rows == MAX_ROWS:
            break
    return _sample(pa.concat_tables(taken), num_rows, num_rows_total)


def _take_groups(parts: Iterable[pa.Table], builder: PromptBuilder, num_rows_total: int) -> Sample:
    groups = _Groups()
    for rows in parts:
        groups.add(rows, [None if isinstance(c, RowError) else "\n".join(c) for c in builder.contents(rows)])
    table = groups.table()
    return _sample(table, table.num_rows if groups.is_cut else num_rows_total, num_rows_total)


def _sample(table: pa.Table, num_rows: int, num_rows_total: int) -> Sample:
    return Sample(table.drop_columns([_ID]), table[_ID].to_pylist(), num_rows, num_rows_total)


class _Groups:
    """Rows whose key ends in `level` zero bits, never more than the limits."""

    def __init__(self) -> None:
        self._tables: list[pa.Table] = []
        self._keys = np.array([], np.uint64)
        self._sizes = np.array([], np.int64)
        self._common: set[str] | None = None
        self._level = 0
        self._is_capped = False

    @property
    def is_cut(self) -> bool:
        """Were rows left out?"""
        return self._level > 0 or self._is_capped

    def add(self, rows: pa.Table, texts: list[str | None]) -> None:
        """`texts`: what each row says; None for rows that are no prompts, which are not taken."""
        if self._common is None:
            self._common = _common_sentences([text for text in texts if text is not None])
        keys = np.array([0 if text is None else _key(text, self._common) for text in texts], np.uint64)
        sizes = np.array([len((text or "").encode("utf-8", "surrogatepass")) for text in texts], np.int64)
        self._append(rows, keys, sizes, np.array([text is not None for text in texts], bool))
        while len(self._keys) > MAX_ROWS or self._sizes.sum() > MAX_BYTES:
            if not self._cap_groups():
                self._level += 1
                self._keep(self._is_picked(self._keys))

    def table(self) -> pa.Table:
        return pa.concat_tables(self._tables)

    def _append(self, rows: pa.Table, keys: np.ndarray, sizes: np.ndarray, is_prompt: np.ndarray) -> None:
        is_taken = is_prompt & self._is_picked(keys)
        self._tables.append(rows.filter(pa.array(is_taken)))
        self._keys = np.concatenate([self._keys, keys[is_taken]])
        self._sizes = np.concatenate([self._sizes, sizes[is_taken]])

    def _is_picked(self, keys: np.ndarray) -> np.ndarray:
        return (keys & np.uint64((1 << self._level) - 1)) == 0

    def _cap_groups(self) -> bool:
        """The first rows of each group only. -> whether any were left out."""
        order = np.argsort(self._keys, kind="stable")
        sorted_keys = self._keys[order]
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order)) - np.searchsorted(sorted_keys, sorted_keys)
        is_kept = rank < MAX_GROUP
        if is_kept.all():
            return False
        self._is_capped = True
        self._keep(is_kept)
        return True

    def _keep(self, is_kept: np.ndarray) -> None:
        table = self.table()
        self._tables = [table.filter(pa.array(is_kept))]
        self._keys, self._sizes = self._keys[is_kept], self._sizes[is_kept]


def _common_sentences(texts: list[str]) -> set[str]:
    counts = Counter(sentence for text in texts for sentence in set(_long_sentences(text)))
    return {sentence for sentence, count in counts.items() if count > max(2, _COMMON * len(texts))}


def _key(text: str, common: Collection[str]) -> int:
    own = [sentence for sentence in _long_sentences(text) if sentence not in common] or [text]
    return min(xxhash.xxh3_64_intdigest(sentence.encode("utf-8", "surrogatepass")) for sentence in own)


def _long_sentences(text: str) -> list[str]:
    return [sentence for sentence in sentences(text) if len(sentence) >= _MIN_SENTENCE]
