"""First pass of planning: tokenised prompts, in pieces that fit in memory, become sorted runs on disk.

A run is an Arrow file of one record batch, rows sorted by prompt, equal prompts in input order. Beside it lie a sample of its
prompts and, if there are any, the rows that have failed, in input order. Files are read in small batches, so memory
does not depend on how large they are.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from batchpaged.planning.keys import TOKEN_BYTES, as_keys, key_offsets, marked, one_array
from batchpaged.planning.plan_file import PROMPTS_SCHEMA, explaining

RUN_SCHEMA = pa.schema(
    [
        ("key", pa.large_binary()),  # see keys.py
        *(field for field in PROMPTS_SCHEMA if field.name != "token_ids"),
    ]
)
SAMPLES_PER_RUN = 256
_MAX_SAMPLES_BYTES = 128 << 20
_MIN_RUN_BYTES = 16 << 20
_RUNS = 8  # unless they would be smaller than that, or larger than a step may be
_ROW_BYTES = 64  # about what a row takes in memory beside its tokens
_BATCH_BYTES = 16 << 20
_MAX_BATCH_ROWS = 8192


@dataclass(frozen=True)
class SortedRun:
    path: Path
    num_rows: int
    num_bytes: int  # in memory, about
    num_failed: int  # rows beside it
    num_truncated: int

    @property
    def samples(self) -> Path:
        return self.path.with_suffix(".samples")

    @property
    def failed(self) -> Path:
        return self.path.with_suffix(".failed")


@dataclass(frozen=True)
class FileSize:
    num_rows: int
    num_bytes: int  # of its rows in memory, about


def file_size(path: Path) -> FileSize:
    """From its footer."""
    with explaining(path), pq.ParquetFile(path) as file:
        return _size(file.metadata)


def group_files(files: Sequence[Path], sizes: Sequence[FileSize], run_bytes: int) -> list[list[Path]]:
    """Consecutive files together while they stay within a run's size: what one task sorts."""
    groups: list[list[Path]] = []
    num_bytes = 0
    for path, size in zip(files, sizes, strict=True):
        if not groups or num_bytes + size.num_bytes > run_bytes:
            groups.append([])
            num_bytes = 0
        groups[-1].append(path)
        num_bytes += size.num_bytes
    return groups


def choose_run_bytes(sizes: Sequence[FileSize], most: int) -> int:
    """Size of a run: a small data set has several too, for more than one worker, and to touch little memory at a time."""
    return min(most, max(_MIN_RUN_BYTES, sum(size.num_bytes for size in sizes) // _RUNS))


def choose_sample_bytes(sizes: Sequence[FileSize], run_bytes: int) -> int:
    """How far samples are apart: SAMPLES_PER_RUN, or fewer where all samples together would not fit in memory."""
    num_bytes, num_rows = sum(size.num_bytes for size in sizes), sum(size.num_rows for size in sizes)
    bytes_per_row = num_bytes // max(1, num_rows)
    return max(1, run_bytes // SAMPLES_PER_RUN, num_bytes * bytes_per_row // _MAX_SAMPLES_BYTES)


def _size(metadata: pq.FileMetaData) -> FileSize:
    groups = (metadata.row_group(i) for i in range(metadata.num_row_groups))
    columns = (group.column(j) for group in groups for j in range(group.num_columns))
    num_tokens = sum(column.num_values for column in columns if column.path_in_schema.startswith("token_ids"))
    return FileSize(metadata.num_rows, metadata.num_rows * _ROW_BYTES + num_tokens * TOKEN_BYTES)


@dataclass(frozen=True)
class _Batch:
    """Some rows of a file, as a run needs them. Token ids exist once, as keys: what was decoded is let go."""

    rows: pa.Table  # RUN_SCHEMA, without those that have failed
    failed: pa.Table  # PROMPTS_SCHEMA

    @property
    def num_bytes(self) -> int:
        return (self.rows.num_rows + self.failed.num_rows) * _ROW_BYTES + sum(self.rows[name].nbytes for name in ("key", "grammar"))


def sort_files(folder: Path, index: int, files: Sequence[Path], run_bytes: int, sample_bytes: int) -> list[SortedRun]:
    """Write the runs of these tokenised files, in input order: usually one, more where a file is larger than a run.

    Every `sample_bytes` of a sorted run one prompt goes into its sample.
    """
    pieces = enumerate(_gather(map(_split_failed, _iter_tables(files)), run_bytes))
    return [_write_run(folder / f"run-{index:05}-{i:05}", batches, sample_bytes) for i, batches in pieces]


def _gather(batches: Iterator[_Batch], run_bytes: int) -> Iterator[list[_Batch]]:
    """Consecutive batches that make a run."""
    run: list[_Batch] = []
    num_bytes = 0
    for batch in batches:
        if run and num_bytes + batch.num_bytes > run_bytes:
            yield run
            run, num_bytes = [], 0
        run.append(batch)
        num_bytes += batch.num_bytes
    if run:
        yield run


def _iter_tables(files: Sequence[Path]) -> Iterator[pa.Table]:
    for path in files:
        with explaining(path), pq.ParquetFile(path) as file:
            size = _size(file.metadata)
            num_rows = min(_MAX_BATCH_ROWS, max(1, _BATCH_BYTES * size.num_rows // max(1, size.num_bytes)))
            for batch in file.iter_batches(num_rows, columns=PROMPTS_SCHEMA.names):
                yield pa.Table.from_batches([batch]).select(PROMPTS_SCHEMA.names).cast(PROMPTS_SCHEMA)


def _split_failed(table: pa.Table) -> _Batch:
    has_failed = pc.equal(table["status"], "failed")
    failed = table.filter(has_failed)
    rows = table.filter(pc.invert(has_failed)) if failed.num_rows else table
    keys = marked(as_keys(one_array(rows["token_ids"])), one_array(rows["adapter"]))
    return _Batch(rows.drop_columns("token_ids").add_column(0, "key", keys).cast(RUN_SCHEMA), failed)


def _write_run(path: Path, batches: list[_Batch], sample_bytes: int) -> SortedRun:
    """Empties `batches`: the run in memory and its sorted copy are enough."""
    failed = pa.concat_tables(batch.failed for batch in batches)
    rows = pa.concat_tables(batch.rows for batch in batches).combine_chunks()
    num_truncated = pc.sum(pc.equal(rows["status"], "truncated")).as_py() or 0
    batches.clear()
    order = pc.sort_indices(one_array(rows["key"]))  # stable
    rows = rows.take(order)
    run = SortedRun(path, rows.num_rows, int(_row_bytes(rows).sum()), failed.num_rows, num_truncated)
    _write(run.path, rows)
    _write(run.samples, rows.select(["key", "ordinal"]).take(_sample(rows, sample_bytes)))
    if failed.num_rows:
        _write(run.failed, failed)
    return run


def _row_bytes(rows: pa.Table) -> np.ndarray:
    num_bytes = np.diff(key_offsets(one_array(rows["key"]))) * TOKEN_BYTES + _ROW_BYTES
    grammars = one_array(rows["grammar"])
    if grammars.null_count == len(grammars):
        return num_bytes
    return num_bytes + pc.fill_null(pc.binary_length(grammars), 0).to_numpy()


def _sample(rows: pa.Table, sample_bytes: int) -> pa.Array:
    """The rows in the middle of each `sample_bytes`."""
    ends = np.cumsum(_row_bytes(rows))
    total = ends[-1] if len(ends) else 0
    places = np.searchsorted(ends, np.arange(sample_bytes // 2, total, sample_bytes), side="right")
    return pa.array(np.minimum(places, len(ends) - 1))


def _write(path: Path, rows: pa.Table) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
        writer.write_table(rows)


def load(path: Path) -> pa.Table:
    """Memory-mapped: only what is used is read."""
    with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as reader:
        return reader.read_all()
