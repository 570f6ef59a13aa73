"""Log-probabilities of completions and prompts, against the stock model in one pass over the whole sequence."""

import itertools
import random

import numpy as np
import pytest
import torch
from engine.real_engine import Limits, build_engine, completions
from tiny_models import tiny_model

from batchpaged.engine import model_runner
from batchpaged.engine.engine import Engine
from batchpaged.engine.sampling_params import SamplingParams

ARCHITECTURES = ["llama", "gemma2", "qwen2_moe"]
NUM_TOP = 4
LIMITS = {
    "cached": Limits(),
    "uncached": Limits(prefix_cache=False),
    "preempted": Limits(block_size=4),
    "ahead": Limits(steps_ahead=1),
}


def prompts() -> list[list[int]]:
    """In planned order: shared documents of whole and broken blocks, equal prompts, one that another begins with."""
    rng = random.Random(5)
    documents = [[rng.randrange(3, 60) for _ in range(n)] for n in (16, 21, 8)]
    rows = [document + [rng.randrange(3, 60) for _ in range(n)] for document in documents for n in (3, 9, 1)]
    return sorted([*rows, rows[0], documents[1], [7]])


def params(**more: object) -> SamplingParams:
    return SamplingParams(max_tokens=24, logprobs=NUM_TOP, prompt_logprobs=NUM_TOP, **more)


def stock_logprobs(name: str, token_ids: list[int]) -> np.ndarray:
    """[num_tokens - 1, vocab_size]: of what follows each token."""
    ids = torch.tensor([token_ids])
    return tiny_model(name)(input_ids=ids).logits[0, :-1].log_softmax(-1).numpy()


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_log_probabilities_are_those_of_the_stock_model(name: str, limits: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_runner, "MAX_LOGITS", 1)  # one prompt token at a time
    rows, engine = prompts(), build_engine(tiny_model(name), LIMITS[limits])
    if limits == "preempted":
        preempt_now_and_then(engine)
    outputs = completions(engine, rows, params(temperature=1.5, repetition_penalty=1.2, top_k=20))
    for prompt, output in zip(rows, outputs, strict=True):
        expected = stock_logprobs(name, [*prompt, *output.token_ids])
        check(output.prompt_logprobs, prompt[1:], expected[: len(prompt) - 1])
        check(output.outputs[0].logprobs, output.token_ids, expected[len(prompt) - 1 :])
    assert (engine.scheduler.num_preemptions > 0) is (limits == "preempted")
    assert (engine.scheduler.counts.cached > 0) is (limits != "uncached")


def preempt_now_and_then(engine: Engine) -> None:
    schedule, number = engine.scheduler.schedule, itertools.count()

    def preempt_and_schedule():
        if engine.scheduler.running and next(number) % 3 == 2:
            engine.scheduler.preempt_last()
        return schedule()

    engine.scheduler.schedule = preempt_and_schedule


def check(found, token_ids, expected: np.ndarray) -> None:
    assert found.top_ids.shape == (len(token_ids), NUM_TOP)
    chosen = expected[np.arange(len(token_ids)), list(token_ids)]
    np.testing.assert_allclose(found.logprobs, chosen, atol=1e-4, rtol=0)
    np.testing.assert_allclose(found.top_logprobs, -np.sort(-expected, axis=1)[:, :NUM_TOP], atol=1e-4, rtol=0)
    np.testing.assert_allclose(np.take_along_axis(expected, found.top_ids, 1), found.top_logprobs, atol=1e-4, rtol=0)
    better = (expected > chosen[:, None] + 1e-4).sum(1), (expected > chosen[:, None] - 1e-4).sum(1)
    assert ((better[0] + 1 <= found.ranks) & (found.ranks <= np.maximum(better[1], 1))).all()


def test_a_prefix_from_the_cache_costs_one_token_more() -> None:
    """The last token that a prompt shares is computed again, since what follows it is the prompt's own; no other is."""
    rows = prompts()
    plain, judged = (
        completions(build_engine(tiny_model(), Limits()), rows, p) for p in (SamplingParams(max_tokens=12), params())
    )
    for before, after in zip(plain, judged, strict=True):
        assert after.num_cached_tokens == max(0, before.num_cached_tokens - 1)
    assert sum(c.num_cached_tokens for c in judged) > 0


def test_nothing_is_kept_where_nobody_asks() -> None:
    (output,) = completions(build_engine(tiny_model(), Limits()), [[5, 6, 7]], SamplingParams(max_tokens=3))
    assert output.prompt_logprobs is None and output.outputs[0].logprobs is None


def test_the_chosen_token_alone() -> None:
    (output,) = completions(build_engine(tiny_model(), Limits()), [[5, 6, 7]], SamplingParams(max_tokens=3, logprobs=0))
    assert output.outputs[0].logprobs.logprobs.shape == (3,) and output.outputs[0].logprobs.top_ids.shape == (3, 0)
    assert list(output.outputs[0].logprobs.ranks) == [1, 1, 1]
