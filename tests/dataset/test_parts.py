from hypothesis import given, settings
from hypothesis import strategies as st

from batchpaged.dataset.parts import cut_parts

LAYOUTS = st.lists(st.lists(st.integers(0, 30), max_size=8), max_size=6)


@settings(deadline=None)
@given(LAYOUTS, st.none() | st.integers(0, 300), st.integers(1, 40))
def test_parts_cover_every_row_once_in_order(group_rows, limit, part_rows):
    parts = cut_parts(group_rows, limit, part_rows)
    total = sum(map(sum, group_rows))
    assert [part.index for part in parts] == list(range(len(parts)))
    next_ordinal = 0
    for part in parts:
        assert part.first_ordinal == next_ordinal and part.num_rows > 0
        next_ordinal += part.num_rows
    assert next_ordinal == (total if limit is None else min(total, limit))


@settings(deadline=None)
@given(LAYOUTS, st.none() | st.integers(0, 300), st.integers(1, 40))
def test_row_groups_are_whole_consecutive_and_bounded(group_rows, limit, part_rows):
    parts = cut_parts(group_rows, limit, part_rows)
    used = [(part.file_index, group) for part in parts for group in part.row_groups]
    everything = [(f, g) for f, rows in enumerate(group_rows) for g, count in enumerate(rows) if count]
    assert used == everything[: len(used)]
    for part in parts:
        held = sum(group_rows[part.file_index][group] for group in part.row_groups)
        assert len(part.row_groups) == 1 or held <= part_rows
        assert part.num_rows == held or part is parts[-1]


def test_a_huge_row_group_is_one_part():
    assert [part.num_rows for part in cut_parts([[5, 200_000, 5]])] == [5, 200_000, 5]


def test_small_row_groups_are_read_together():
    (part,) = cut_parts([[1000] * 8])
    assert part.row_groups == tuple(range(8))
