"""The one door to a kernel."""

import pytest

from batchpaged.kernels.triton.launching import MAX_GRID_YZ, launch, record
from batchpaged.kernels.triton.targets import TARGETS


@pytest.mark.parametrize("grid", [(1, MAX_GRID_YZ + 1), (1, 1, MAX_GRID_YZ + 1)])
def test_a_grid_that_cuda_would_refuse_is_refused(grid: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="too large in its second or third"):
        launch(None, grid)


def test_a_grid_of_the_largest_size_is_started_and_an_empty_one_is_not() -> None:
    with record(TARGETS["sm_90"]) as launches:
        launch(None, (1 << 20, MAX_GRID_YZ, MAX_GRID_YZ), 7, BLOCK=3)
    assert [(one.args, one.options) for one in launches] == [((7,), {"BLOCK": 3})]
    launch(None, (4, 0, 2))
