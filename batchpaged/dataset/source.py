"""The data set as the run sees it: files in a fixed order, one schema, rows numbered from zero.

`open_source` judges everything that can be judged before any row is computed, and reports all of it at once. A `Source`
is opened once, on the client, and sent to the workers as it is; it opens files only while it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from batchpaged.dataset.discovery import FoundFile, find_files
from batchpaged.dataset.formats import FileFacts, iter_rows, read_facts
from batchpaged.dataset.ids import find_id_problems
from batchpaged.dataset.locations import Location, find_version, first_line, mask
from batchpaged.dataset.parts import PART_SIZE, Part, Piece, cut_parts
from batchpaged.dataset.promotion import needs_check
from batchpaged.dataset.s3 import is_store_failure
from batchpaged.dataset.schema import conform, describe_clashes, merge_schemas
from batchpaged.errors import InputError, UnfinishedError

if TYPE_CHECKING:
    from batchpaged.config import InputConfig

_NUM_THREADS = 32  # footers are small: opening many files is all waiting
_MAX_SHOWN = 50  # problems listed one by one


@dataclass(frozen=True)
class SourceFile:
    """One input file, as it was when the source was opened."""

    path: str  # without credentials
    size: int  # bytes
    version: str  # changes with the content: time of modification in ns, or an entity tag
    num_rows: int
    location: Location = field(repr=False)


@dataclass(frozen=True)
class Source:
    """A data set that has been judged readable. Picklable; holds no open file and no rows."""

    schema: pa.Schema  # one for all files
    files: tuple[SourceFile, ...]  # with a limit, only those it reaches
    parts: tuple[Part, ...]  # every row in exactly one, in order
    stored_as: tuple[tuple[str, str], ...] = ()  # (column, its name in the files) where the two are not the same
    num_rows_left_out: int = 0  # by a limit

    @property
    def num_rows(self) -> int:
        return sum(part.num_rows for part in self.parts)

    def iter_tables(self, part: Part, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """The part's rows in order, in the unified schema (or these columns of it, in this order).

        Row i of all has the ordinal `part.first_ordinal + i`. No table has more rows than PART_SIZE says, or many more
        bytes: a part may be a row group of any size, and is never in memory whole. Raises InputError, with all
        problems of all its files, if one changed since it was opened or its rows cannot be decoded; at the latest when
        the last table was taken.
        """
        problems: list[str] = []
        yield from _gather(table for piece in part.pieces for table in self._try_piece(piece, columns, problems))
        if problems:
            raise InputError(*problems)

    def iter_column(self, name: str) -> Iterator[pa.Table]:
        """Of all rows, as iter_tables."""
        for part in self.parts:
            yield from self.iter_tables(part, [name])

    def iter_piece(self, piece: Piece, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """The same of one piece."""
        yield from _gather(self._iter_piece(piece, columns))

    def _try_piece(self, piece: Piece, columns: Sequence[str] | None, problems: list[str]) -> Iterator[pa.Table]:
        """A bad file among many small ones must not hide the others'."""
        try:
            yield from self._iter_piece(piece, columns)
        except InputError as error:
            problems += error.problems

    def _iter_piece(self, piece: Piece, columns: Sequence[str] | None) -> Iterator[pa.Table]:
        schema = self.schema if columns is None else pa.schema([self.schema.field(name) for name in columns])
        file = self.files[piece.file_index]
        count = 0
        with _explaining(file, piece):
            _check_unchanged(file)
            stored = dict(self.stored_as)
            names = [stored.get(name, name) for name in schema.names]
            for table in iter_rows(file.location, piece.row_groups, names, piece.num_rows):
                count += table.num_rows
                yield conform(rename(table, {stored: name for name, stored in self.stored_as}), schema)
            _check_count(file, piece, count)

    def fingerprint(self) -> list[dict[str, str | int]]:
        """One entry per file, for JSON; differs whenever a file was replaced, added, removed or reordered."""
        return [{"path": f.path, "size": f.size, "version": f.version, "num_rows": f.num_rows} for f in self.files]


@contextmanager
def _explaining(file: SourceFile, piece: Piece) -> Iterator[None]:
    try:
        yield
    except (InputError, UnfinishedError):
        raise
    except Exception as error:  # a damaged page can make a decoder raise anything
        if is_store_failure(error):
            raise UnfinishedError(f"{file.path} cannot be read: {mask(first_line(error))}") from error
        where = f"{file.path}: row groups {piece.row_groups[0]} to {piece.row_groups[-1]}"
        raise InputError(f"{where} cannot be read ({type(error).__name__}); write the file again") from error


def _check_count(file: SourceFile, piece: Piece, num_rows: int) -> None:
    if num_rows != piece.num_rows:
        raise InputError(f"{file.path}: {num_rows} rows where its footer promised {piece.num_rows}")


def _gather(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Few tables out of many small ones."""
    pending: list[pa.Table] = []
    num_rows = num_bytes = 0
    for table in tables:
        num_rows, num_bytes = num_rows + table.num_rows, num_bytes + table.nbytes
        if pending and (num_rows > PART_SIZE.num_rows or num_bytes > PART_SIZE.num_bytes):
            yield _concat(pending)
            pending, num_rows, num_bytes = [], table.num_rows, table.nbytes
        pending.append(table)
    if pending:
        yield _concat(pending)


def _concat(tables: list[pa.Table]) -> pa.Table:
    """One dictionary per column: writing several in one row group would write values out."""
    return tables[0] if len(tables) == 1 else pa.concat_tables(tables).unify_dictionaries()


def rename(table: pa.Table, names: Mapping[str, str]) -> pa.Table:
    return table.rename_columns([names.get(name, name) for name in table.column_names]) if names else table


def open_source(
    config: InputConfig,
    judge: Callable[[pa.Schema], list[str]] = lambda schema: [],
    own: tuple[str, ...] = (),
    names: Mapping[str, str] = MappingProxyType({}),
) -> Source:
    """Find, open and judge every input file. Raises InputError with all problems of all files.

    Files whose names begin with one of `own` are left out: the run writes them itself, and `**/*.parquet` may find them.

    `names`: of columns in the files, what they are called from here on.

    `judge` says what is wrong with the columns. It is asked even if some files are bad: then with those of the others.
    """
    found, problems = find_files([config.path] if isinstance(config.path, str) else config.path)
    others = [file for file in found if not (own and file.location.name.startswith(own))]
    opened, more = _open_all(others or found, names)  # if there are no others, the folder is not the run's, which is said later
    problems += more
    schema, more = merge_schemas([facts.schema for _, facts in opened], [file.path for file, _ in opened])
    problems += more + _judge_schema(schema) + (judge(schema) if opened else [])
    source = _number_rows(schema, opened, config.limit)
    source = replace(source, stored_as=tuple((name, stored) for stored, name in names.items()))
    if not problems and source.num_rows == 0:
        problems.append("the input file holds no rows" if len(opened) == 1 else f"the {len(opened)} input files hold no rows")
    refuse_if(problems)  # what follows reads rows, which needs sound files
    refuse_if(_find_lossy_columns(source, opened) + _judge_ids(source, config.id_column))
    return source


def _open_all(
    found: Sequence[FoundFile], names: Mapping[str, str]
) -> tuple[list[tuple[SourceFile, FileFacts]], list[str]]:
    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        results = list(pool.map(_try_open, found))
    opened = [(file, _renamed(facts, names)) for file, facts in (r for r in results if not isinstance(r, str))]
    return opened, [result for result in results if isinstance(result, str)]


def _renamed(facts: FileFacts, names: Mapping[str, str]) -> FileFacts:
    if not names:
        return facts
    fields = [field.with_name(names.get(field.name, field.name)) for field in facts.schema]
    return replace(facts, schema=pa.schema(fields, metadata=facts.schema.metadata))


def _try_open(file: FoundFile) -> tuple[SourceFile, FileFacts] | str:
    try:
        facts = read_facts(file)
        version = find_version(file.location, file.mtime_ns) or "unknown"
    except InputError as error:
        return str(error)
    except OSError as error:
        return f"{file.location.name}: {first_line(error)}"
    return SourceFile(file.location.name, file.size, version, facts.num_rows, file.location), facts


def _number_rows(schema: pa.Schema, opened: Sequence[tuple[SourceFile, FileFacts]], limit: int | None) -> Source:
    parts = cut_parts([facts.groups for _, facts in opened], limit, PART_SIZE)
    files = tuple(file for file, _ in opened)
    num_rows = sum(part.num_rows for part in parts)
    is_cut = num_rows == limit
    used = files[: parts[-1].pieces[-1].file_index + 1] if is_cut and parts else files
    return Source(schema, used, parts, num_rows_left_out=sum(facts.num_rows for _, facts in opened) - num_rows)


def _judge_schema(schema: pa.Schema) -> list[str]:
    return describe_clashes(schema) + [_describe_unwritable(f) for f in schema if not _is_writable(f)]


def _is_writable(field: pa.Field) -> bool:
    """Every input column is written to the output, so Parquet must be able to hold it."""
    try:
        pq.ParquetWriter(pa.BufferOutputStream(), pa.schema([field])).close()
    except pa.ArrowException:
        return False
    return True


def _describe_unwritable(field: pa.Field) -> str:
    return f"column {field.name!r} of type {field.type} cannot be written to Parquet; convert or drop it in the input"


def _judge_ids(source: Source, id_column: str | None) -> list[str]:
    return [] if id_column is None else find_id_problems(source.schema, id_column, source.iter_column)


def _find_lossy_columns(source: Source, opened: Sequence[tuple[SourceFile, FileFacts]]) -> list[str]:
    """Columns whose values do not all fit the unified type, found by reading just those columns of just those files."""
    problems = [
        _describe_lossy(source.files[piece.file_index], column, source.schema.field(column.name))
        for piece in (piece for part in source.parts for piece in part.pieces)
        for column in _changed_columns(opened[piece.file_index][1].schema, source.schema)
        if not _can_convert(source, piece, column.name)
    ]
    return list(dict.fromkeys(problems))  # once per file, however many of its pieces have such values


def _changed_columns(schema: pa.Schema, unified: pa.Schema) -> list[pa.Field]:
    """The columns whose types alone cannot promise that every value fits."""
    if schema.equals(unified):
        return []
    return [column for column in schema if needs_check(column.type, unified.field(column.name).type)]


def _describe_lossy(file: SourceFile, column: pa.Field, unified: pa.Field) -> str:
    return (
        f"{file.path}: column {column.name!r} is {column.type}, and some of its values do not fit {unified.type}, "
        "which it needs for the other files; write it with one type in all files"
    )


def _can_convert(source: Source, piece: Piece, column: str) -> bool:
    try:
        for _ in source.iter_piece(piece, [column]):
            pass
    except InputError:
        return False
    return True


def _check_unchanged(file: SourceFile) -> None:
    """A file that was replaced while the run was going would mix two data sets in one output."""
    info = file.location.info()
    if info.type != pafs.FileType.File:
        raise InputError(f"{file.path}: no longer there; it was when the run started")
    version = find_version(file.location, info.mtime_ns) or "unknown"
    if (info.size, version) != (file.size, file.version):
        raise InputError(f"{file.path}: changed since the run started; start a new run")


def refuse_if(problems: Sequence[str]) -> None:
    """Raises InputError with all of them, if there are any."""
    if not problems:
        return
    hidden = [f"... and {len(problems) - _MAX_SHOWN} more"] if len(problems) > _MAX_SHOWN else []
    lines = "".join(f"\n  - {problem}" for problem in [*problems[:_MAX_SHOWN], *hidden])
    raise InputError(f"the input cannot be used ({len(problems)} problem{'s' if len(problems) > 1 else ''}):{lines}")
