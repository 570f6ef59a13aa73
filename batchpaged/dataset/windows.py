"""Results of a run, brought from planned order to ordinal order with bounded memory.

A window is a run of whole parts, about half a million rows or fewer. `spread_units` reads every unit once and appends
each row to the file of its window; `load_window` reads one window and puts it in order, checking that each ordinal is
there exactly once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from batchpaged.dataset.parts import Part
from batchpaged.dataset.schema import OUTPUT_COLUMNS
from batchpaged.errors import UnfinishedError

_WINDOW_ROWS = 500_000
_WINDOW_BYTES = 64 << 20  # of compressed units; several times that in memory
_MAX_WINDOWS = 256  # one open file each; uneven parts can make it twice as many
_SPREAD_ROWS = 262_144  # rows gathered before they are spread, so that each window gets more than a few at a time
_SPREAD_BYTES = 128 << 20


@dataclass(frozen=True)
class Window:
    """Consecutive parts, small enough together to be held in memory with their results."""

    index: int
    parts: tuple[Part, ...]

    @property
    def start(self) -> int:
        """Its first ordinal."""
        return self.parts[0].first_ordinal

    @property
    def end(self) -> int:
        """One past its last ordinal."""
        return self.parts[-1].first_ordinal + self.parts[-1].num_rows


def cut_windows(parts: Sequence[Part], units_dir: Path) -> list[Window]:
    """All parts, in order, in windows whose size fits the units' size on disk."""
    num_rows = sum(part.num_rows for part in parts)
    num_bytes = sum(path.stat().st_size for path in _unit_paths(units_dir))
    num_windows = max(1, num_rows // _WINDOW_ROWS, num_bytes // _WINDOW_BYTES)
    rows_each = -(-num_rows // min(num_windows, _MAX_WINDOWS))
    groups: list[list[Part]] = []
    for part in parts:
        if not groups or part.first_ordinal + part.num_rows - groups[-1][0].first_ordinal > rows_each:
            groups.append([])
        groups[-1].append(part)
    return [Window(i, tuple(group)) for i, group in enumerate(groups)]


def _result_schema(columns: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field("ordinal", pa.int64()), *(field.with_type(_wide(field.type)) for field in columns)])


def _wide(kind: pa.DataType) -> pa.DataType:
    """Inside a window strings may pass 2 GiB in total, which 32-bit offsets cannot address."""
    if pa.types.is_string(kind):
        return pa.large_string()
    if pa.types.is_list(kind):
        return pa.large_list(_wide(kind.value_type))
    return pa.struct([field.with_type(_wide(field.type)) for field in kind]) if pa.types.is_struct(kind) else kind


def spread_units(
    units_dir: Path, windows: Sequence[Window], folder: Path, columns: pa.Schema = OUTPUT_COLUMNS
) -> None:
    """Write every row of every unit to the file of its window. Raises UnfinishedError for a row without one."""
    schema = _result_schema(columns)
    starts = np.array([window.start for window in windows])
    end = windows[-1].end if windows else 0
    with ExitStack() as stack:
        files = [stack.enter_context(pa.OSFile(_path(folder, window.index), "wb")) for window in windows]
        writers = [stack.enter_context(pa.ipc.new_stream(file, schema)) for file in files]
        for table in _gather(_iter_units(units_dir, schema)):
            ordinals = table["ordinal"].fill_null(-1).to_numpy()
            if len(ordinals) and (ordinals.min() < 0 or ordinals.max() >= end):
                raise UnfinishedError(
                    f"{units_dir}: units hold rows that the input does not have; run again with --fresh"
                )
            order = np.argsort(ordinals, kind="stable")
            cuts = [*np.searchsorted(ordinals[order], starts), len(order)]
            for writer, first, last in zip(writers, cuts, cuts[1:], strict=False):
                if last > first:
                    writer.write_table(table.take(order[first:last]))


def load_window(window: Window, folder: Path) -> pa.Table:
    """The window's results in ordinal order, one row per ordinal. Deletes nothing.

    Raises UnfinishedError if an ordinal is missing or there more than once.
    """
    with pa.ipc.open_stream(_path(folder, window.index)) as reader:
        table = reader.read_all()
    ordinals = table["ordinal"].to_numpy()
    order = np.argsort(ordinals, kind="stable")
    _check_complete(ordinals[order], window)
    return table.take(order)


def _check_complete(ordinals: np.ndarray, window: Window) -> None:
    expected = np.arange(window.start, window.end)
    if np.array_equal(ordinals, expected):
        return
    present, counts = np.unique(ordinals, return_counts=True)
    doubled = present[counts > 1]
    missing = np.setdiff1d(expected, present)
    problems = [
        f"{len(which)} rows are {what} (the first is row {which[0]})"
        for which, what in ((missing, "missing from the units"), (doubled, "in the units more than once"))
        if len(which)
    ]
    raise UnfinishedError(
        f"{' and '.join(problems)}; run the same command again, or with --fresh if that does not help"
    )


def _gather(batches: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Tables of about _SPREAD_ROWS rows out of many small ones."""
    pending: list[pa.Table] = []
    num_rows = num_bytes = 0
    for batch in batches:
        pending.append(batch)
        num_rows, num_bytes = num_rows + batch.num_rows, num_bytes + batch.nbytes
        if num_rows >= _SPREAD_ROWS or num_bytes >= _SPREAD_BYTES:
            yield pa.concat_tables(pending)
            pending, num_rows, num_bytes = [], 0, 0
    if pending:
        yield pa.concat_tables(pending)


def _iter_units(units_dir: Path, schema: pa.Schema) -> Iterator[pa.Table]:
    for path in _unit_paths(units_dir):
        try:
            with pq.ParquetFile(path, page_checksum_verification=True) as unit:
                for batch in unit.iter_batches(columns=schema.names):
                    yield pa.Table.from_batches([batch]).select(schema.names).cast(schema)
        except (pa.ArrowException, KeyError, ValueError, OSError) as error:
            reason = f"{type(error).__name__}; delete it and run the same command again, which computes it anew"
            raise UnfinishedError(f"{path}: this unit cannot be read: {reason}") from error


def _unit_paths(units_dir: Path) -> list[Path]:
    return sorted(units_dir.glob("unit-*.parquet"))


def _path(folder: Path, index: int) -> str:
    return str(folder / f"window-{index:05}.arrow")
