"""How files are cut into parts, the pieces that one task reads and tokenises."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

PART_ROWS = 8192  # enough to spread fixed costs, little enough to hold a part's prompts in memory


@dataclass(frozen=True)
class Part:
    """Consecutive row groups of one file.

    A row group is never split, because reading from its middle means decoding it from its start: a file written as one
    huge row group is one part. `Source.iter_tables` reads it in pieces.
    """

    index: int
    file_index: int  # in Source.files
    first_ordinal: int  # of its first row in the data set
    num_rows: int  # may be fewer than its row groups hold, where the data set's limit cuts
    row_groups: tuple[int, ...]


def cut_parts(
    group_rows: Sequence[Sequence[int]], limit: int | None = None, part_rows: int = PART_ROWS
) -> tuple[Part, ...]:
    """Every row of every file up to `limit` in exactly one part, in order. `group_rows`: per file, rows of each row
    group.
    """
    parts: list[Part] = []
    first = 0
    for file_index, rows in enumerate(group_rows):
        for groups, count in _gather(rows, part_rows):
            count = count if limit is None else min(count, limit - first)
            if count <= 0:
                return tuple(parts)
            parts.append(Part(len(parts), file_index, first, count, groups))
            first += count
    return tuple(parts)


def _gather(rows: Sequence[int], part_rows: int) -> Iterator[tuple[tuple[int, ...], int]]:
    """Consecutive row groups together while they stay within `part_rows`; empty ones are left out."""
    groups: list[int] = []
    count = 0
    for i, num_rows in enumerate(rows):
        if groups and count + num_rows > part_rows:
            yield tuple(groups), count
            groups, count = [], 0
        if num_rows:
            groups.append(i)
            count += num_rows
    if groups:
        yield tuple(groups), count
