"""The two file formats: what a file says about itself when it is opened, and how some of its rows are read.

Opening a Parquet file reads its last 64 KiB and nothing else. An Arrow stream (a Hugging Face dataset saved to disk)
has no footer, so its batches are walked once; on a local disk that touches only their headers.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from batchpaged.dataset.discovery import FoundFile
from batchpaged.dataset.locations import Location, first_line
from batchpaged.dataset.parts import RowGroup
from batchpaged.errors import InputError

_TAIL_BYTES = 64 * 1024  # holds the whole footer of most files, so that one read is enough
_BATCH_ROWS = 1024  # rows decoded at a time: of 1 MB each, a GiB
_MAX_FETCHED_BYTES = 256 << 20  # of row groups, uncompressed
_PIECE_BYTES = 1 << 20
_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_SIGNATURE_BYTES = 28  # nonce and tag after a plain footer: the columns themselves are encrypted
_STARTS = (
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself; run `git lfs pull`"),
    (b"ARROW1", "an Arrow file; write it as Parquet"),
    (b"\xff\xff\xff\xff", "an Arrow stream; name it *.arrow, or write it as Parquet"),
    (b"PK\x03\x04", "a zip archive; unpack it"),
    (b"\x1f\x8b", "compressed with gzip; unpack it"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd; unpack it"),
    (b"Obj\x01", "an Avro file; write it as Parquet"),
    (b"ORC", "an ORC file; write it as Parquet"),
    (b"{", "JSON text; write it as Parquet"),
    (b"<", "HTML or XML, perhaps a failed download"),
)

_READ = ". Read are Parquet files, and datasets as save_to_disk of Hugging Face writes them"


@dataclass(frozen=True)
class FileFacts:
    """What a file says about itself, without reading its rows."""

    schema: pa.Schema
    groups: tuple[RowGroup, ...]

    @property
    def num_rows(self) -> int:
        return sum(group.num_rows for group in self.groups)


def read_facts(file: FoundFile) -> FileFacts:
    """Raises InputError that says what is wrong with the file and what to do about it."""
    try:
        facts = _read_stream_facts(file) if file.is_arrow else _read_parquet_facts(file)
    except InputError as error:
        raise InputError(f"{file.location.name}: {error}") from error
    except Exception as error:  # filesystems are plug-ins, and a damaged file can make a reader raise anything
        raise InputError(f"{file.location.name}: {type(error).__name__}: {first_line(error)}") from error
    repeated = sorted({name for name in facts.schema.names if facts.schema.names.count(name) > 1})
    if repeated:
        raise InputError(f"{file.location.name}: more than one column is called {', '.join(map(repr, repeated))}")
    return facts


def iter_rows(
    location: Location, groups: Sequence[int], columns: Sequence[str], num_rows: int
) -> Iterator[pa.Table]:
    """The first `num_rows` rows of these row groups, in file order; columns the file lacks are left out.

    Tables of at most _BATCH_ROWS rows. Stops reading when it has them all; the caller checks that there were enough.
    """
    batches = _iter_stream if location.path.lower().endswith(".arrow") else _iter_parquet
    for batch in (piece for batch in batches(location, groups, columns) for piece in _cut(batch)):
        yield pa.Table.from_batches([batch.slice(0, num_rows)])
        num_rows -= batch.num_rows
        if num_rows <= 0:
            return


def _cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A stream's batches may have any size."""
    return (batch.slice(start, _BATCH_ROWS) for start in range(0, batch.num_rows, _BATCH_ROWS))


def _read_parquet_facts(file: FoundFile) -> FileFacts:
    footer = _read_footer(file)
    parquet = pq.ParquetFile(pa.BufferReader(b"PAR1" + footer))
    metadata = parquet.metadata
    if metadata.serialized_size + _SIGNATURE_BYTES == len(footer) - 8:  # asking for its columns would abort the process
        raise InputError("some columns are encrypted; write it without encryption")
    groups = tuple(map(_row_group, map(metadata.row_group, range(metadata.num_row_groups))))
    if sum(group.num_rows for group in groups) != metadata.num_rows:
        raise InputError("damaged: its row groups do not add up to its number of rows")
    if _end_of_data(metadata) > file.size - len(footer):
        raise InputError("damaged: a piece of it is missing, its columns do not fit between its start and its footer")
    return FileFacts(parquet.schema_arrow, groups)


def _row_group(metadata: pq.RowGroupMetaData) -> RowGroup:
    return RowGroup(metadata.num_rows, metadata.total_byte_size)


def _end_of_data(metadata: pq.FileMetaData) -> int:
    """Where the last column of the last row group ends: others come before it in every file that is known."""
    if metadata.num_row_groups == 0 or metadata.num_columns == 0:
        return 0
    column = metadata.row_group(metadata.num_row_groups - 1).column(metadata.num_columns - 1)
    start = min(filter(None, (column.dictionary_page_offset, column.data_page_offset)), default=0)
    return start + column.total_compressed_size


def _read_footer(file: FoundFile) -> bytes:
    """The footer, its length and the closing magic bytes."""
    if file.size == 0:
        raise InputError("the file is empty (0 bytes)")
    with file.location.open() as stream:
        tail = _read_at_end(stream, file.size, _TAIL_BYTES)
        if tail[-4:] != b"PAR1" or len(tail) < 12:
            raise InputError(_describe_not_parquet(stream, tail))
        num_bytes = int.from_bytes(tail[-8:-4], "little") + 8
        if num_bytes + 4 > file.size:
            raise InputError("damaged: its footer is longer than the file")
        return tail[-num_bytes:] if num_bytes <= len(tail) else _read_at_end(stream, file.size, num_bytes)


def _read_at_end(stream: pa.NativeFile, size: int, num_bytes: int) -> bytes:
    stream.seek(max(0, size - num_bytes))
    return stream.read(num_bytes)


def _describe_not_parquet(stream: pa.NativeFile, tail: bytes) -> str:
    if tail[-4:] == b"PARE":
        return "encrypted Parquet; write it without encryption"
    stream.seek(0)
    start = stream.read(512)
    if start.startswith(b"PAR1"):
        return "truncated: it starts as Parquet but has no footer; was it still being written?"
    for magic, meaning in _STARTS:
        if start.startswith(magic):
            return f"not Parquet but {meaning}{_READ}"
    if re.match(rb"\[\s*([\[{\"\d]|$)", start):
        return f"not Parquet but JSON text; write it as Parquet{_READ}"
    return f"not Parquet but text (CSV?); write it as Parquet{_READ}" if _is_text(start) else f"not a Parquet file{_READ}"


def _is_text(start: bytes) -> bool:
    try:
        return "\0" not in codecs.getincrementaldecoder("utf-8")().decode(start)  # a letter cut off at the end is fine
    except UnicodeDecodeError:
        return False


def _iter_parquet(location: Location, groups: Sequence[int], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    with location.open() as stream:
        parquet = _open_parquet(stream, groups, location.is_local)
        names = [name for name in columns if name in parquet.schema_arrow.names]
        for batch in parquet.iter_batches(_BATCH_ROWS, row_groups=list(groups), columns=names):
            yield batch.select(names)  # a name with a dot also matches inside structs


def _open_parquet(stream: pa.NativeFile, groups: Sequence[int], is_local: bool) -> pq.ParquetFile:
    """Far files are fetched ahead, whole columns at a time; near ones, and row groups too large for that, in pieces."""
    parquet = pq.ParquetFile(stream)
    num_bytes = sum(parquet.metadata.row_group(group).total_byte_size for group in groups)
    is_small = num_bytes <= _MAX_FETCHED_BYTES
    return pq.ParquetFile(
        stream,
        metadata=parquet.metadata,
        pre_buffer=is_small and not is_local,
        buffer_size=0 if is_small else _PIECE_BYTES,
        page_checksum_verification=True,
    )


def _read_stream_facts(file: FoundFile) -> FileFacts:
    with _open_stream(file.location) as stream:
        end = _read_at_end(stream, file.size, 8)
        if end.endswith(b"ARROW1"):
            raise InputError("an Arrow file with a footer, not the stream that datasets writes; write it as Parquet")
        if end != _END_OF_STREAM:
            raise InputError("truncated or not an Arrow stream: its end mark is missing")
        stream.seek(0)
        reader = pa.ipc.open_stream(stream)  # every batch is read through, so a damaged one is found here
        return FileFacts(reader.schema, tuple(RowGroup(batch.num_rows, batch.nbytes) for batch in reader))


def _iter_stream(location: Location, groups: Sequence[int], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    with _open_stream(location) as stream:
        reader = pa.ipc.open_stream(stream)
        names = [name for name in columns if name in reader.schema.names]
        wanted, last = set(groups), max(groups, default=-1)
        for i, batch in enumerate(reader):
            if i in wanted:
                yield batch.select(names)
            if i >= last:
                return


@contextmanager
def _open_stream(location: Location) -> Iterator[pa.NativeFile]:
    """Memory-mapped where possible: batches that are passed over then cost nothing."""
    stream = pa.memory_map(location.path) if location.is_local else location.open()
    with stream:
        yield stream
