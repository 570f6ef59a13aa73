"""Prompts as planning has them, whole and in part."""

from pathlib import Path

import numpy as np
import pytest
import tiny_runs

from batchpaged.planning.order import plan_order
from batchpaged.planning.plan_file import read_plan
from batchpaged.simulation.prompts import NUM_SLICES, PlannedPrompts, _sample, read_prompts
from batchpaged.planning.units import Unit


@pytest.fixture(scope="module")
def planned() -> Path:
    return tiny_runs.finished_run().run_dir


def test_all_prompts_of_a_plan_in_its_order(planned: Path):
    prompts = read_prompts(planned, 1000)
    assert len(prompts) == tiny_runs.NUM_ROWS - len(tiny_runs.FAILED)  # failed rows have none
    rows = [tuple(prompts[row].tolist()) for row in range(len(prompts))]
    assert rows == sorted(rows)
    assert len(prompts.values) == read_plan(planned)[0].num_prompt_tokens


def test_their_order_is_plannings(planned: Path):
    import pyarrow as pa

    prompts = read_prompts(planned, 1000)
    expected = plan_order(pa.array([prompts[row] for row in range(len(prompts))], pa.list_(pa.int32())))
    order = prompts.order()
    for name in ("rows", "num_tokens", "num_shared"):
        assert np.array_equal(getattr(order, name), getattr(expected, name)), name


def test_a_sample_is_whole_units_from_all_over_the_plan():
    units = [Unit(i, 10 * i, 10 * i + 10, 1.0, 1, 0) for i in range(1000)]
    sample = _sample(units, 800)
    assert sum(unit.end - unit.start for unit in sample) == 800
    starts = [b.index for a, b in zip(sample[:-1], sample[1:], strict=True) if b.index != a.index + 1]
    assert len(starts) == NUM_SLICES - 1
    assert sample[0].index == 0 and sample[-1].index > 900


@pytest.mark.parametrize("num_rows", [1, 5, 30])
def test_a_sample_of_few_rows_is_never_empty(planned: Path, num_rows: int):
    assert 0 < len(read_prompts(planned, num_rows)) <= tiny_runs.NUM_ROWS


def test_no_prompts():
    prompts = PlannedPrompts.of([])
    assert len(prompts) == len(prompts.order()) == 0
