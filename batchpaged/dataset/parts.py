"""How files are cut into parts, what one task reads and tokenises."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class RowGroup:
    """A row group of a Parquet file, or a batch of an Arrow stream."""

    num_rows: int
    num_bytes: int  # uncompressed; less than in memory, where values are repeated


@dataclass(frozen=True)
class Piece:
    """Consecutive row groups of one file."""

    file_index: int  # in Source.files
    first_ordinal: int  # of its first row in the data set
    num_rows: int  # may be fewer than its row groups hold, where the data set's limit cuts
    row_groups: tuple[int, ...]


@dataclass(frozen=True)
class Part:
    """Consecutive pieces of files: one of them, or several small ones.

    A row group is never split, because reading from its middle means decoding it from its start: a file written as one
    huge row group is one part. `Source.iter_tables` never has all of it in memory.
    """

    index: int
    pieces: tuple[Piece, ...]

    @property
    def first_ordinal(self) -> int:
        return self.pieces[0].first_ordinal

    @property
    def num_rows(self) -> int:
        return sum(piece.num_rows for piece in self.pieces)


@dataclass(frozen=True)
class PartSize:
    """What a part of more than one row group holds at most, and a table read of it."""

    num_rows: int = 8192  # enough to spread fixed costs, little enough to hold their prompts in memory
    num_bytes: int = 64 << 20
    num_files: int = 64  # a far file takes tenths of a second, and small files are to be read by all workers


PART_SIZE = PartSize()


def cut_parts(
    files: Sequence[Sequence[RowGroup]], limit: int | None = None, size: PartSize = PART_SIZE
) -> tuple[Part, ...]:
    """Every row of every file up to `limit` in exactly one part, in order. `files`: the row groups of each."""
    gatherings = _gather(files, limit, size)
    return tuple(Part(index, tuple(_join(pieces))) for index, pieces in enumerate(gatherings))


def _gather(files: Sequence[Sequence[RowGroup]], limit: int | None, size: PartSize) -> Iterator[list[Piece]]:
    """Pieces of one row group each that go into one part."""
    pieces: list[Piece] = []
    num_rows = num_bytes = 0
    for piece, group_bytes in _pieces(files, limit):
        num_rows, num_bytes = num_rows + piece.num_rows, num_bytes + group_bytes
        num_files = piece.file_index - pieces[0].file_index + 1 if pieces else 1
        if pieces and (num_rows > size.num_rows or num_bytes > size.num_bytes or num_files > size.num_files):
            yield pieces
            pieces, num_rows, num_bytes = [], piece.num_rows, group_bytes
        pieces.append(piece)
    if pieces:
        yield pieces


def _pieces(files: Sequence[Sequence[RowGroup]], limit: int | None) -> Iterator[tuple[Piece, int]]:
    """Each row group that is not empty as a piece, and its bytes."""
    first = 0
    for file_index, groups in enumerate(files):
        for i, group in enumerate(groups):
            if first == limit:
                return
            num_rows = group.num_rows if limit is None else min(group.num_rows, limit - first)
            if num_rows:
                yield Piece(file_index, first, num_rows, (i,)), group.num_bytes
                first += num_rows


def _join(pieces: Sequence[Piece]) -> Iterator[Piece]:
    """Neighbours of one file as one piece."""
    joined = pieces[0]
    for piece in pieces[1:]:
        if piece.file_index == joined.file_index:
            num_rows, groups = joined.num_rows + piece.num_rows, joined.row_groups + piece.row_groups
            joined = replace(joined, num_rows=num_rows, row_groups=groups)
        else:
            yield joined
            joined = piece
    yield joined
