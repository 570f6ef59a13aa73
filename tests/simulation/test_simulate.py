"""Whole simulations of small plans."""

import random
from dataclasses import replace

import numpy as np
import pytest

from batchpaged.engine.engine import EngineLimits
from batchpaged.engine.sampling_params import SamplingParams
from batchpaged.errors import InputError
from batchpaged.planning.cost import CostModel
from batchpaged.planning.summary import num_unique_tokens
from batchpaged.planning.units import cut_units
from batchpaged.simulation.prompts import PlannedPrompts
from batchpaged.simulation.request import SimulationRequest
from batchpaged.simulation.simulate import SimulatedRun, simulate
from batchpaged.simulation.step_time import StepTime

MAX_TOKENS = 16
LIMITS = EngineLimits(
    num_blocks=2000, block_size=8, max_batch_tokens=256, max_sequences=16, max_model_len=512, prefix_cache=True
)


def prompts(num_rows: int, seed: int = 0, num_documents: int = 40) -> PlannedPrompts:
    """A system prompt, documents of which some are asked about often, and questions."""
    rng = random.Random(seed)
    system = [rng.randrange(1000) for _ in range(10)]
    documents = [[rng.randrange(1000) for _ in range(rng.randint(40, 80))] for _ in range(num_documents)]
    weights = [1 / (1 + i) for i in range(num_documents)]
    rows = [
        system + document + [rng.randrange(1000) for _ in range(rng.randint(5, 10))]
        for document in rng.choices(documents, weights, k=num_rows)
    ]
    return PlannedPrompts.of([np.array(row, dtype=np.int32) for row in sorted(rows)])


def run(
    num_rows: int = 600, mean_completion: float | None = None, temperature: float = 0.0, n: int = 1, **limits
) -> SimulatedRun:
    planned = prompts(num_rows)
    params = SamplingParams(max_tokens=MAX_TOKENS, temperature=temperature, n=n)
    return SimulatedRun(
        prompts=planned,
        lengths=SimulationRequest((1,), mean_completion=mean_completion).lengths(len(planned), MAX_TOKENS, n),
        params=params,
        limits=replace(LIMITS, **limits),
        cost=CostModel(MAX_TOKENS / 2, params.is_greedy),
        step_time=StepTime(per_step=64.0, per_prefilled_token=1.0, per_decoded_token=1.3, per_attended_token=0.001),
    )


def test_one_worker_prefills_each_unique_token_once():
    simulated = run()
    result = simulate(simulated, 1)
    assert result.num_prefilled_tokens == result.num_unique_tokens == num_unique_tokens(simulated.order)
    assert result.num_prompt_tokens == len(simulated.prompts.values)
    assert (result.reuse_efficiency, result.balance, result.num_steals) == (1.0, 1.0, 0)
    assert result.num_completion_tokens == 600 * MAX_TOKENS
    assert result.num_rows == 600 and result.num_units == len(cut_units(simulated.order, simulated.cost, 1))


@pytest.mark.parametrize("mean_completion", [None, 5.0])
@pytest.mark.parametrize("num_workers", [2, 5, 16])
def test_no_more_is_lost_than_prefixes_where_ranges_were_cut(num_workers, mean_completion):
    simulated = run(mean_completion=mean_completion)
    result = simulate(simulated, num_workers)
    num_lost = result.num_prefilled_tokens - result.num_unique_tokens
    assert 0 < num_lost <= (num_workers - 1 + result.num_steals) * int(simulated.order.num_shared.max())
    assert result.num_completion_tokens == simulated.lengths.sum()
    assert result.num_rows == 600


@pytest.mark.parametrize("mean_completion", [None, 5.0])
def test_workers_end_about_together(mean_completion):
    result = simulate(run(3000, mean_completion), 4)
    assert result.balance <= 1.05
    assert result.reuse_efficiency >= 0.99


def test_more_workers_than_units():
    result = simulate(run(50), 64)
    assert result.num_rows == 50 and result.num_units < 64
    assert result.mean_worker_seconds < result.seconds  # most do nothing


def test_it_comes_out_the_same_each_time():
    assert simulate(run(mean_completion=5.0), 3) == simulate(run(mean_completion=5.0), 3)


def test_time_of_one_worker_is_the_sum_of_its_steps():
    """Nothing but decoding costs time: each completion has one token from its prefill, and decodes the others."""
    simulated = replace(run(100), step_time=StepTime(0.0, 0.0, 2.0, 0.0))
    result = simulate(simulated, 1)
    assert result.seconds == pytest.approx(2.0 * 100 * (MAX_TOKENS - 1))
    assert result.rows_per_second == pytest.approx(100 / result.seconds)


def test_without_a_cache_every_prompt_token_is_prefilled():
    result = simulate(run(100, prefix_cache=False), 2)
    assert result.num_prefilled_tokens == result.num_prompt_tokens
    assert result.hit_rate == result.reuse_efficiency == 0.0


def test_a_small_pool_is_used_to_the_full_and_preempts():
    small, large = simulate(run(200, num_blocks=40), 1), simulate(run(200), 1)
    assert small.peak_cache_usage > 0.9 > large.peak_cache_usage
    assert small.mean_cache_usage > large.mean_cache_usage
    assert small.seconds > large.seconds


def with_duplicates(temperature: float) -> SimulatedRun:
    simulated = run(100, temperature=temperature)
    twice = [simulated.prompts[row] for row in range(100) for _ in range(2)]
    return replace(simulated, prompts=PlannedPrompts.of(twice), lengths=np.full((200, 1), MAX_TOKENS))


def test_equal_prompts_are_computed_once_under_greedy_sampling_alone():
    greedy, sampled = (simulate(with_duplicates(temperature), 2) for temperature in (0.0, 1.0))
    assert greedy.num_rows == sampled.num_rows == 200
    assert greedy.num_prompt_tokens == sampled.num_prompt_tokens
    assert greedy.num_completion_tokens == 100 * MAX_TOKENS and sampled.num_completion_tokens == 200 * MAX_TOKENS
    assert sampled.num_prefilled_tokens >= greedy.num_prefilled_tokens + 100  # the last token of each second one


def test_equal_prompts_with_other_grammars_are_computed_each():
    simulated = with_duplicates(0.0)
    grammars = tuple("ab"[row % 2] for row in range(200))
    result = simulate(replace(simulated, prompts=replace(simulated.prompts, grammars=grammars)), 2)
    assert result.num_completion_tokens == 200 * MAX_TOKENS


@pytest.mark.parametrize("mean_completion", [None, 5.0])
def test_all_sequences_of_a_row_are_generated_and_its_prompt_is_computed_once(mean_completion):
    one, three = (simulate(run(200, mean_completion, temperature=1.0, n=n), 2) for n in (1, 3))
    assert three.num_completion_tokens == run(200, mean_completion, temperature=1.0, n=3).lengths.sum()
    assert three.num_prompt_tokens == one.num_prompt_tokens and three.num_rows == one.num_rows == 200
    assert three.seconds > 1.5 * one.seconds


def test_rows_that_never_fit_are_left_out():
    simulated = run(100)
    long = [*(simulated.prompts[row] for row in range(100)), *[np.full(600, 2000, dtype=np.int32)] * 20]
    result = simulate(replace(simulated, prompts=PlannedPrompts.of(long), lengths=np.full((120, 1), MAX_TOKENS)), 3)
    assert result.num_rows == 100


def test_a_cache_too_small_for_any_row_is_an_error():
    with pytest.raises(InputError, match="fits into the KV cache"):
        simulate(run(20, num_blocks=2), 2)
