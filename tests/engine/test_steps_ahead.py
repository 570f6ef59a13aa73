"""The next step is planned while one runs: what comes out is the same, and costs a token per stop at most."""

import random
from dataclasses import replace

import pytest
import tiny_runs
from engine.harness import EOS, VOCAB_SIZE, Harness, Settings, prefix_tree
from engine.real_engine import Limits, build_engine, completions
from engine.test_engine import LIMITS, Numbers
from engine.test_scheduler_properties import ENGINES, ROWS
from fake_model import FakeRunner, reference_tokens
from hypothesis import event, given, settings, strategies as st
from tiny_models import tiny_model

from batchpaged import api
from batchpaged.engine.engine import Engine, run_to_end
from batchpaged.engine.sampling_params import SamplingParams
from batchpaged.engine.step import PendingToken, StepPlan
from batchpaged.engine.stop import StopCheck
from batchpaged.errors import RowError

AHEAD = Settings(steps_ahead=1)


@settings(max_examples=300)
@given(engine=ENGINES, rows=ROWS, rng=st.randoms(use_true_random=False))
def test_any_run_equals_one_prompt_at_a_time(engine: Settings, rows: list[list[int]], rng: random.Random) -> None:
    harness = Harness(replace(engine, steps_ahead=1))
    for row in rows:
        try:
            harness.add(row, rng.randint(1, 30))
        except RowError:
            continue
        while rng.random() < 0.3 and harness.scheduler.has_unfinished:
            harness.step()
    harness.run()
    harness.check_outputs()
    event(f"preempted: {harness.scheduler.num_preemptions > 0}, cached: {harness.scheduler.counts.cached > 0}")


@pytest.mark.parametrize("settings", [Settings(), Settings(num_blocks=14, max_batch_tokens=8)])
def test_tokens_and_reuse_are_those_of_the_synchronous_engine(settings: Settings) -> None:
    harnesses = [Harness(settings), Harness(replace(settings, steps_ahead=1))]
    for harness in harnesses:
        for prompt in prefix_tree(random.Random(4), 30):
            harness.add(prompt, 20)
        harness.run()
    one, ahead = harnesses
    assert [s.generated_token_ids for s in one.sequences] == [s.generated_token_ids for s in ahead.sequences]
    if one.scheduler.num_preemptions == ahead.scheduler.num_preemptions == 0:
        assert one.scheduler.counts == ahead.scheduler.counts
    else:
        assert settings.num_blocks == 14


def decoded_positions(prompt: list[int], max_tokens: int) -> list[int]:
    """Positions of the tokens computed one at a time, after the prompt."""
    harness, plans = Harness(AHEAD), []
    harness.on_plan = plans.append
    harness.add(prompt, max_tokens)
    harness.run()
    while harness.started:
        harness.started.popleft()
    harness.check_outputs()
    return [plan.positions[0] for plan in plans[1:]]


def test_a_stop_is_noticed_one_step_late_and_the_token_after_it_thrown_away() -> None:
    prompt = next([n, 1] for n in range(100) if 2 < len(reference_tokens([n, 1], 20, VOCAB_SIZE, EOS)) < 20)
    num_tokens = len(reference_tokens(prompt, 20, VOCAB_SIZE, EOS))
    assert decoded_positions(prompt, 20) == [2 + i for i in range(num_tokens)]  # the last one's position computes nothing


def test_max_tokens_is_known_ahead() -> None:
    prompt = next([n, 1] for n in range(100) if EOS not in reference_tokens([n, 1], 6, VOCAB_SIZE))
    assert decoded_positions(prompt, 6) == [2 + i for i in range(5)]
    assert decoded_positions(prompt, 1) == []


def test_tokens_that_are_not_known_are_named_in_the_plan() -> None:
    harness, plans = Harness(AHEAD), []
    harness.on_plan = plans.append
    harness.add([1, 2, 3], 4)
    harness.add([5], 4)
    harness.step()
    harness.step()
    assert plans[0].pending == ()
    assert plans[1].token_ids == (None, None)
    assert plans[1].pending == (PendingToken(0, 0), PendingToken(1, 1))


def make_engine(steps_ahead: int, plans: list[StepPlan]) -> Engine:
    class Watched(FakeRunner):
        def start(self, plan: StepPlan):
            plans.append(plan)
            return super().start(plan)

    limits = replace(LIMITS, steps_ahead=steps_ahead)
    runner = Watched(limits.num_blocks, limits.block_size, VOCAB_SIZE, limits.max_batch_tokens)
    return Engine(runner, limits, StopCheck(Numbers(), frozenset({EOS})))


def test_a_penalty_that_looks_at_earlier_tokens_waits_for_them() -> None:
    plans: list[StepPlan] = []
    engine, outputs = make_engine(1, plans), []
    for index, prompt in enumerate(prefix_tree(random.Random(0), 8)):
        engine.add(prompt, SamplingParams(max_tokens=5, repetition_penalty=1.1), str(index), index)
    run_to_end(engine, outputs.append)
    assert len(outputs) == 8
    assert not any(plan.pending for plan in plans)
    histories = [s.sample.token_ids for plan in plans for s in plan.sequences if s.sample is not None]
    assert all(None not in history for history in histories)


def test_an_engine_that_is_ahead_answers_one_call_later_and_all_the_same() -> None:
    plans: list[StepPlan] = []
    engine = make_engine(1, plans)
    prompts = prefix_tree(random.Random(2), 20)
    expected = [reference_tokens(prompt, 9, VOCAB_SIZE, EOS) for prompt in prompts]
    params = SamplingParams(max_tokens=9)
    assert [list(c.token_ids) for c in completions(engine, prompts, params)] == expected
    assert any(plan.pending for plan in plans)
    assert engine.num_steps == len(plans)
    outputs = completions(engine, prompts, params)  # with a step of the first time perhaps still under way
    assert [list(c.token_ids) for c in outputs] == expected


@pytest.mark.parametrize("params", [SamplingParams(max_tokens=8), SamplingParams(max_tokens=8, temperature=1.0)])
def test_a_real_model_takes_its_own_samples_for_tokens_that_are_not_known(params: SamplingParams) -> None:
    prompts = [[1, *range(10, 40), last] for last in (50, 60, 70)]
    engines = [build_engine(tiny_model(), limits) for limits in (Limits(), Limits(steps_ahead=1))]
    one, ahead = ([c.token_ids for c in completions(engine, prompts, params)] for engine in engines)
    assert one == ahead


def test_a_whole_run_gives_the_same_completions() -> None:
    run_dir = tiny_runs.new_path("ahead")
    engine = tiny_runs.pipeline(run_dir)["engine"] | {"async_scheduling": True}
    api.run(tiny_runs.pipeline(run_dir, gates=[], engine=engine))
    columns = ["id", "completion", "finish_reason", "completion_tokens", "status"]
    assert tiny_runs.output(run_dir, columns) == tiny_runs.output(tiny_runs.finished_run().run_dir, columns)
