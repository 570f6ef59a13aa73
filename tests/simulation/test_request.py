import numpy as np
import pytest

from batchpaged.simulation.request import SimulationRequest


def test_completions_take_all_of_max_tokens_if_nothing_else_is_known():
    assert SimulationRequest((1,)).lengths(4, 32).tolist() == [[32]] * 4


def test_lengths_have_the_mean_asked_for_and_the_same_seed_gives_the_same():
    request = SimulationRequest((1,), mean_completion=10.0, seed=3)
    lengths = request.lengths(20_000, 1000)
    assert lengths.mean() == pytest.approx(10.0, rel=0.05)
    assert lengths.min() == 1
    assert np.array_equal(lengths, request.lengths(20_000, 1000))
    assert not np.array_equal(lengths, SimulationRequest((1,), mean_completion=10.0, seed=4).lengths(20_000, 1000))


def test_completions_of_a_row_have_lengths_of_their_own():
    lengths = SimulationRequest((1,), mean_completion=10.0).lengths(1000, 1000, 3)
    assert lengths.shape == (1000, 3) and (lengths[:, 0] != lengths[:, 1]).any()


def test_no_completion_passes_max_tokens():
    lengths = SimulationRequest((1,), mean_completion=10.0).lengths(1000, 12)
    assert lengths.max() == 12
