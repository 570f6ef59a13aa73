import pytest

from batchpaged.engine.step import SequenceStep, StepPlan
from batchpaged.planning.cost import ModelCost
from batchpaged.simulation.step_time import TOKENS_PER_STEP, StepTime


def plan(*queries_and_contexts: tuple[int, int]) -> StepPlan:
    steps = tuple(SequenceStep(i, query, context, (), None) for i, (query, context) in enumerate(queries_and_contexts))
    tokens = tuple(range(sum(step.query_length for step in steps)))
    return StepPlan(tokens, tokens, tokens, steps, ())


def test_a_step_costs_its_tokens_and_what_they_attend_to():
    time = StepTime(per_step=1000.0, per_prefilled_token=10.0, per_decoded_token=7.0, per_attended_token=1.0)
    prefill = 5 + 6 + 7 + 8  # tokens 4 to 7 of a prompt, each with itself
    assert time.seconds(plan((4, 8), (1, 20))) == 1000 + 40 + 7 + prefill + 20
    assert time.seconds(plan((1, 1))) == 1000 + 7 + 1


def test_it_follows_from_the_models_arithmetic():
    time = StepTime.of(ModelCost(200.0, 300.0, 1, 4.0), flops_per_second=100.0)
    assert (time.per_prefilled_token, time.per_decoded_token, time.per_attended_token) == (2.0, 3.0, 0.04)
    assert time.per_step == pytest.approx(2.0 * TOKENS_PER_STEP)
