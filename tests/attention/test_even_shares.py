"""How the CPU backend divides its tasks among threads."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from batchpaged.attention.cpu import UNEVEN, _even_shares


@given(st.lists(st.integers(1, 1000), max_size=30), st.integers(1, 4), st.integers(1, 5))
def test_each_task_is_in_exactly_one_share(lengths: list[int], num_groups: int, num_shares: int) -> None:
    work = np.repeat(np.array(lengths, dtype=np.int64)[:, None], num_groups, axis=1)
    shares = _even_shares(work, num_shares)
    assert len(shares) == num_shares
    assert sorted(np.concatenate(shares).tolist()) == list(range(work.size))


def test_equal_runs_stay_beside_their_neighbours() -> None:
    first, second = _even_shares(np.full((10, 3), 7), 2)
    assert first.tolist() == [*range(0, 30, 3), *range(1, 15, 3)]
    assert second.tolist() == [*range(16, 30, 3), *range(2, 30, 3)]


def test_large_tasks_are_divided_by_size() -> None:
    work = np.array([[10], [10], [90], [80], [10]])
    sums = [int(work.ravel()[share].sum()) for share in _even_shares(work, 2)]
    assert max(sums) <= UNEVEN * 100 + 10
    assert sums == [110, 90]
