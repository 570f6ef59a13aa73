"""A dry run with a simulation, and what goes into it."""

import numpy as np
import pytest
import tiny_runs

from batchpaged import api
from batchpaged.planning.cost import CostModel, ModelCost
from batchpaged.simulation.plan_replay import Worker, simulate_plan
from batchpaged.simulation.prompts import PlannedPrompts
from batchpaged.simulation.request import SimulationRequest
from batchpaged.simulation.text import simulation_lines


@pytest.fixture(scope="module")
def report():
    request = SimulationRequest((1, 3), mean_completion=4.0)
    notes = tiny_runs.Notes()
    found = api.plan(tiny_runs.pipeline(tiny_runs.new_path("none")), simulate=request, reporter=notes)
    assert notes.stages == ["read", "plan", "simulate"]
    return found


def test_a_plan_is_simulated_for_each_number_of_workers(report):
    simulation = report.simulation
    assert [result.num_workers for result in simulation.results] == [1, 3]
    assert simulation.num_rows == simulation.num_rows_planned == tiny_runs.NUM_ROWS - len(tiny_runs.FAILED)
    assert 1.0 <= simulation.mean_completion <= tiny_runs.MAX_TOKENS
    assert simulation.time_note.startswith("virtual time, at ")


def test_one_worker_computes_what_the_plan_says(report):
    result = report.simulation.results[0]
    assert result.num_prompt_tokens == report.summary.num_prompt_tokens
    assert result.num_prefilled_tokens == result.num_unique_tokens == report.summary.num_unique_tokens
    assert result.num_units == report.summary.num_units - 1  # but for the unit of failed rows


def test_a_part_of_the_rows():
    request = SimulationRequest((2,), num_rows=20)
    simulation = api.plan(tiny_runs.pipeline(tiny_runs.new_path("none")), simulate=request).simulation
    assert simulation.num_rows < simulation.num_rows_planned == tiny_runs.NUM_ROWS - len(tiny_runs.FAILED)
    assert simulation.results[0].num_rows == simulation.num_rows


def test_without_a_request_and_without_prompts_there_is_no_simulation():
    pipeline = tiny_runs.pipeline(tiny_runs.new_path("none"))
    assert api.plan(pipeline).simulation is None
    pipeline["prompt"] = {"user": "{{ 1 // 0 }}"}
    assert api.plan(pipeline, simulate=SimulationRequest((1,))).simulation is None


SAMPLINGS = [
    ({"n": 3, "temperature": 1.0}, 3, 3),
    ({"n": 2, "best_of": 4, "temperature": 0.5}, 4, 4),
    ({"beam_width": 3, "n": 2}, 3, 3),
    ({"n": 3}, 1, 1),  # all equal: one stands for all
]


@pytest.mark.parametrize(("sampling", "num_sequences", "times"), SAMPLINGS)
def test_all_sequences_of_a_row_are_counted(sampling, num_sequences, times):
    pipeline = tiny_runs.pipeline(tiny_runs.new_path("none"), sampling={"max_tokens": 8, **sampling})
    pipeline = api.read_pipeline(pipeline, [], None)
    prompts = PlannedPrompts.of([np.array(row, np.int32) for row in ([1, 2, 3], [1, 2, 3], [1, 2, 4])])
    worker = Worker(ModelCost(2.0, 3.0, kv_bytes_per_token=10, flops_per_context_token=0.0), 10 * 16 * 40, None)
    cost = CostModel(4, is_greedy=pipeline.sampling.temperature == 0)
    simulation = simulate_plan(prompts, 3, pipeline, cost, worker, SimulationRequest((1,)), tiny_runs.Notes())
    num_computed = 2 if cost.is_greedy else 3  # equal rows, beams among them, are computed once under greedy sampling
    assert simulation.results[0].num_completion_tokens == num_computed * times * 8
    assert simulation.num_sequences == num_sequences
    line = list(simulation_lines(simulation))[1]
    assert (f"all 3 rows of {num_sequences} sequences each," in line) == (num_sequences > 1)


def test_workers_have_the_engine_of_the_pipeline_file():
    pipeline = api.read_pipeline(tiny_runs.pipeline(tiny_runs.new_path("none")), [], None)
    prompts = PlannedPrompts.of([[1, 2, 3], [1, 2, 4]])
    worker = Worker(ModelCost(2.0, 3.0, kv_bytes_per_token=10, flops_per_context_token=0.0), 10 * 16 * 4, None)
    request = SimulationRequest((1,))
    cost = CostModel(4, is_greedy=True)
    simulation = simulate_plan(prompts, 2, pipeline, cost, worker, request, tiny_runs.Notes())
    [result] = simulation.results
    assert result.peak_cache_usage == 0.5  # 2 sequences of 1 block each, of 4 blocks
    assert "an assumption" in simulation.time_note
