"""From committed units back to the input's shape: same files, same order, every input column and the output columns.

Units hold rows in planned order, so a file of the output needs rows from all of them. Instead of searching every unit
for every file, results are spread once over windows (runs of consecutive ordinals, temporary files beside the output),
and each window is then sorted in memory: two passes however large the data set is. See `windows.py`.

The output folder is written under a temporary name, `_SUCCESS` last, every file and the folder synced, and then
renamed: a folder with the final name is always whole.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from batchpaged.dataset.schema import OUTPUT_COLUMNS
from batchpaged.dataset.windows import Window, cut_windows, load_window, spread_units
from batchpaged.errors import UnfinishedError

if TYPE_CHECKING:
    from batchpaged.dataset.reorder import Reorder
    from batchpaged.dataset.source import Source

_SUCCESS = "_SUCCESS"
_NUM_SYNCING = 16


def assemble(
    source: Source,
    units_dir: Path,
    out_dir: Path,
    on_progress: Callable[[int], None] | None = None,
    reorder: Reorder | None = None,
    columns: pa.Schema = OUTPUT_COLUMNS,
) -> None:
    """Write and publish the output of a run whose units, with these columns, are all committed. `out_dir` is replaced if
    it is there.

    `on_progress` is called with the number of rows written so far. With `reorder`, one more column records the order of
    each row's documents. Memory: one window of results and one part of input.
    Raises UnfinishedError if an ordinal is missing or there twice, a unit file cannot be read, or the disk is full;
    then `out_dir` is as it was before.
    """
    with _publishing(out_dir) as temporary:
        (temporary / "windows").mkdir()
        added = _Added(columns, reorder)
        _write_files(source, units_dir, temporary, on_progress or (lambda num_rows: None), added)
        shutil.rmtree(temporary / "windows")


@contextmanager
def _publishing(out_dir: Path) -> Iterator[Path]:
    """A temporary folder, which takes the place of `out_dir` when all of the block's work is done, and is gone otherwise."""
    temporary = out_dir.with_name(f".{out_dir.name}.tmp")
    _remove_leftovers(out_dir)
    try:
        temporary.mkdir(parents=True)
        yield temporary
        _write_success(temporary / _SUCCESS)
        _publish(temporary, out_dir)
    except OSError as error:
        raise UnfinishedError(f"{out_dir}: the output cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@dataclass(frozen=True)
class _Added:
    """What the output has besides the input's columns."""

    columns: pa.Schema
    reorder: Reorder | None


def _write_files(
    source: Source, units_dir: Path, folder: Path, on_progress: Callable[[int], None], added: _Added
) -> None:
    windows = cut_windows(source.parts, units_dir)
    spread_units(units_dir, windows, folder / "windows", added.columns)
    paths = [folder / name for name in _output_names([file.path for file in source.files])]
    schema = _output_schema(source.schema, added)
    rows = _iter_rows(source, windows, folder / "windows", on_progress, added)
    following = next(rows, None)
    with ThreadPoolExecutor(_NUM_SYNCING) as pool:  # the disk may take as long for one small file as for many
        for file_index, path in enumerate(paths):
            with pq.ParquetWriter(path, schema, compression="zstd", write_page_checksum=True) as writer:
                while following is not None and following[0] == file_index:  # a file without rows is written too
                    writer.write_table(following[1])
                    following = next(rows, None)
        list(pool.map(_sync, paths))


def _iter_rows(
    source: Source,
    windows: list[Window],
    folder: Path,
    on_progress: Callable[[int], None],
    added: _Added,
) -> Iterator[tuple[int, pa.Table]]:
    """In order, the finished rows (a few thousand at a time) and the file they belong to."""
    schema = _output_schema(source.schema, added)
    for window in windows:
        results = load_window(window, folder)
        for part in window.parts:
            for piece in part.pieces:
                start = piece.first_ordinal - window.start
                for rows in source.iter_piece(piece):
                    yield piece.file_index, _join_columns(rows, results.slice(start, rows.num_rows), schema, added)
                    start += rows.num_rows
            on_progress(part.first_ordinal + part.num_rows)


def _join_columns(rows: pa.Table, results: pa.Table, schema: pa.Schema, added: _Added) -> pa.Table:
    columns = [*rows.columns, *(results[field.name].cast(field.type) for field in added.columns)]
    if added.reorder is not None:
        columns.append(_orders(rows[added.reorder.column], results["status"], added.reorder))
    return pa.Table.from_arrays(columns, schema=schema)


def _orders(documents: pa.ChunkedArray, status: pa.ChunkedArray, reorder: Reorder) -> pa.Array:
    """Computed again rather than carried through plan and units: it depends on the row and the counts alone."""
    orders = zip(reorder.orders(documents), status.to_pylist(), strict=True)
    return pa.array([None if state == "failed" else order for order, state in orders], reorder.order_field.type)


def _output_schema(schema: pa.Schema, added: _Added) -> pa.Schema:
    orders = [] if added.reorder is None else [added.reorder.order_field]
    return pa.schema([*schema, *added.columns, *orders], metadata=schema.metadata)


def _output_names(paths: list[str]) -> list[str]:
    """One name per input file: its own, `.parquet` at the end, a number where two would be the same."""
    names: list[str] = []
    taken: dict[str, int] = {}  # stem in lower case (some file systems do not tell the cases apart) -> times met
    for path in paths:
        stem = re.sub(r"\.(parquet|arrow)$", "", PurePosixPath(path).name, flags=re.IGNORECASE).lstrip("._") or "data"
        name = stem
        while name.lower() in taken:
            taken[stem.lower()] += 1
            name = f"{stem}-{taken[stem.lower()] - 1}"
        taken[name.lower()] = 1
        names.append(f"{name}.parquet")
    return names


def _write_success(path: Path) -> None:
    path.touch()
    _sync(path)
    _sync(path.parent)


def _publish(temporary: Path, out_dir: Path) -> None:
    """Rename into place. An older output is moved aside first and deleted only when the new one is there."""
    old = _aside(out_dir)
    if out_dir.exists():
        out_dir.rename(old)
    try:
        temporary.rename(out_dir)
    except OSError:
        if old.exists():
            old.rename(out_dir)
        raise
    _sync(out_dir.parent)
    shutil.rmtree(old, ignore_errors=True)


def publish_copy(output: Path, out_dir: Path) -> None:
    """Publish another folder's output as `out_dir` too; no byte is copied where the file system has links.

    Raises UnfinishedError if the disk is full; then `out_dir` is as it was before.
    """
    with _publishing(out_dir) as temporary:
        for file in sorted(path for path in output.iterdir() if path.name != _SUCCESS):
            _link(file, temporary / file.name)


def _link(file: Path, target: Path) -> None:
    try:
        os.link(file, target)
    except OSError:
        shutil.copyfile(file, target)


def _remove_leftovers(out_dir: Path) -> None:
    """What a killed run left: unfinished work goes; an output moved aside comes back if none took its place."""
    shutil.rmtree(out_dir.with_name(f".{out_dir.name}.tmp"), ignore_errors=True)
    old = _aside(out_dir)
    if old.exists() and not out_dir.exists():
        old.rename(out_dir)
    shutil.rmtree(old, ignore_errors=True)


def _aside(out_dir: Path) -> Path:
    return out_dir.with_name(f".{out_dir.name}.old")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
