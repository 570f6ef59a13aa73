from hypothesis import given, settings
from hypothesis import strategies as st

from batchpaged.dataset.parts import PartSize, RowGroup, cut_parts

GROUPS = st.builds(RowGroup, st.integers(0, 30), st.integers(0, 100))
FILES = st.lists(st.lists(GROUPS, max_size=8), max_size=6)
SIZES = st.builds(PartSize, st.integers(1, 60), st.integers(1, 300), st.integers(1, 4))


def pieces_of(parts):
    return [piece for part in parts for piece in part.pieces]


@settings(deadline=None)
@given(FILES, st.none() | st.integers(0, 300), SIZES)
def test_parts_cover_every_row_once_in_order(files, limit, size):
    parts = cut_parts(files, limit, size)
    total = sum(group.num_rows for groups in files for group in groups)
    assert [part.index for part in parts] == list(range(len(parts)))
    next_ordinal = 0
    for piece in pieces_of(parts):
        assert piece.first_ordinal == next_ordinal and piece.num_rows > 0
        next_ordinal += piece.num_rows
    assert next_ordinal == (total if limit is None else min(total, limit))


@settings(deadline=None)
@given(FILES, st.none() | st.integers(0, 300), SIZES)
def test_row_groups_are_whole_consecutive_and_bounded(files, limit, size):
    parts = cut_parts(files, limit, size)
    used = [(piece.file_index, group) for piece in pieces_of(parts) for group in piece.row_groups]
    everything = [(f, g) for f, groups in enumerate(files) for g, group in enumerate(groups) if group.num_rows]
    assert used == everything[: len(used)]
    for part in parts:
        groups = [files[piece.file_index][group] for piece in part.pieces for group in piece.row_groups]
        assert len({piece.file_index for piece in part.pieces}) == len(part.pieces)
        assert part.num_rows == sum(group.num_rows for group in groups) or part is parts[-1]
        if len(groups) > 1:
            assert part.num_rows <= size.num_rows and sum(group.num_bytes for group in groups) <= size.num_bytes
            assert part.pieces[-1].file_index - part.pieces[0].file_index < size.num_files


def test_a_huge_row_group_is_one_part():
    groups = [RowGroup(5, 1), RowGroup(200_000, 1), RowGroup(5, 1), RowGroup(5, 1 << 30), RowGroup(1, 1)]
    assert [part.num_rows for part in cut_parts([groups])] == [5, 200_000, 5, 5, 1]


def test_small_row_groups_are_read_together():
    (part,) = cut_parts([[RowGroup(1000, 1)] * 8])
    assert [piece.row_groups for piece in part.pieces] == [tuple(range(8))]


def test_small_files_are_read_together():
    parts = cut_parts([[RowGroup(3, 1)]] * 150)
    assert [len(part.pieces) for part in parts] == [64, 64, 22]
