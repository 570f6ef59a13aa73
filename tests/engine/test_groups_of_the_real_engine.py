"""Several completions of a row by the real engine: beams against transformers' generate, samples, and the best of them."""

import itertools
import random
from functools import cache

import numpy as np
import pytest
import torch
from engine.real_engine import Limits, build_engine, completions
from tiny_models import tiny_model

from batchpaged.engine.engine import Engine
from batchpaged.engine.sampling_params import SamplingParams

ARCHITECTURES = ["llama", "gemma2", "qwen2_moe"]
EOS = 9
MAX_TOKENS = 10
LIMITS = {
    "cached": Limits(),
    "uncached": Limits(prefix_cache=False),
    "preempted": Limits(block_size=4),
    "ahead": Limits(steps_ahead=1),
    "narrow": Limits(max_batch_tokens=8, block_size=4),
}
SEARCHES = [
    {"beam_width": 2, "n": 1},
    {"beam_width": 4, "n": 4},
    {"beam_width": 4, "n": 2, "length_penalty": 2.0, "early_stopping": True},
    {"beam_width": 2, "n": 2, "length_penalty": -1.0, "early_stopping": "never"},
]


def prompts() -> list[list[int]]:
    rng = random.Random(1)
    document = [rng.randrange(10, 60) for _ in range(13)]
    return [document + [rng.randrange(10, 60) for _ in range(n)] for n in (2, 3, 7)] + [document[:8], [11]]


@cache
def generated(name: str, search: int, prompt: int) -> tuple[list[list[int]], list[float]]:
    """transformers' beams without padding, and their scores."""
    model, options = tiny_model(name), SEARCHES[search]
    ids = torch.tensor([prompts()[prompt]])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=MAX_TOKENS,
        do_sample=False,
        num_beams=options["beam_width"],
        num_return_sequences=options["n"],
        length_penalty=options.get("length_penalty", 1.0),
        early_stopping=options.get("early_stopping", False),
        eos_token_id=EOS,
        pad_token_id=0,
        output_scores=True,
        return_dict_in_generate=True,
    )
    rows = out.sequences[:, ids.shape[1] :].tolist()
    return [row[: row.index(EOS) + 1] if EOS in row else row for row in rows], out.sequences_scores.tolist()


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_beams_and_scores_are_those_of_generate(name: str, limits: str) -> None:
    for search, options in enumerate(SEARCHES if limits == "cached" else SEARCHES[1:3]):
        if options is not SEARCHES[1] and limits not in ("cached", "preempted"):
            continue
        engine = build_engine(tiny_model(name), LIMITS[limits], frozenset({EOS}))
        if limits == "preempted":
            preempt_now_and_then(engine)
        outputs = completions(engine, prompts(), SamplingParams(max_tokens=MAX_TOKENS, logprobs=1, **options))
        for index, output in enumerate(outputs):
            beams, scores = generated(name, SEARCHES.index(options), index)
            assert [list(o.token_ids) for o in output.outputs] == beams
            np.testing.assert_allclose([o.score for o in output.outputs], scores, atol=1e-4, rtol=1e-5)
            for one in output.outputs:
                length = len(one.token_ids) ** options.get("length_penalty", 1.0)
                assert one.score == pytest.approx(one.logprobs.logprobs.sum() / length, abs=1e-4, rel=1e-5)
        assert (engine.scheduler.num_preemptions > 0) is (limits == "preempted")
        assert engine.scheduler.groups.counts.num_copied_blocks > 0


def preempt_now_and_then(engine: Engine) -> None:
    schedule, number = engine.scheduler.schedule, itertools.count()

    def preempt_and_schedule():
        if engine.scheduler.running and next(number) % 4 == 2:
            engine.scheduler.preempt_last()
            engine.scheduler.check()
        return schedule()

    engine.scheduler.schedule = preempt_and_schedule


def sampled(limits: Limits, **options: object) -> list[list[tuple[int, ...]]]:
    engine = build_engine(tiny_model(), limits, frozenset({EOS}))
    params = SamplingParams(max_tokens=MAX_TOKENS, **options)
    return [[o.token_ids for o in c.outputs] for c in completions(engine, prompts(), params)]


def test_four_greedy_completions_are_equal_and_have_one_prompts_blocks() -> None:
    engine = build_engine(tiny_model(), Limits())
    prompt = prompts()[0]
    engine.add(prompt, SamplingParams(max_tokens=3, n=4), "row", None)
    engine.step()
    assert engine.pool.num_referenced == -(-len(prompt) // 8)
    outputs = [completion for _ in range(3) for completion in engine.step()][0].outputs
    assert len(outputs) == 4 and len(set(outputs)) == 1
    assert [outputs[0].token_ids] == sampled(Limits(), n=1)[0] or len(outputs[0].token_ids) == 3


@pytest.mark.parametrize("limits", LIMITS)
def test_samples_follow_row_and_index_alone(limits: str) -> None:
    """Not the cache, the batch, or how many others there are."""
    expected = sampled(Limits(max_sequences=1, prefix_cache=False), n=3, temperature=1.0)
    assert sampled(LIMITS[limits], n=3, temperature=1.0) == expected
    assert sampled(LIMITS[limits], n=2, temperature=1.0) == [row[:2] for row in expected]
    assert all(len(set(row)) > 1 for row in expected)


def test_the_best_are_those_with_the_highest_mean_log_probability() -> None:
    engine = build_engine(tiny_model(), Limits(), frozenset({EOS}))
    everything = SamplingParams(max_tokens=MAX_TOKENS, temperature=1.0, n=5, logprobs=0)
    expected = []
    for completion in completions(engine, prompts(), everything):
        means = [float(o.logprobs.logprobs.mean(dtype=np.float64)) for o in completion.outputs]
        order = sorted(range(5), key=lambda i: -means[i])[:2]
        expected.append([(completion.outputs[i].token_ids, pytest.approx(means[i], abs=1e-5)) for i in order])
    engine = build_engine(tiny_model(), Limits(), frozenset({EOS}))
    params = SamplingParams(max_tokens=MAX_TOKENS, temperature=1.0, n=2, best_of=5)
    found = completions(engine, prompts(), params)
    assert [[(o.token_ids, o.score) for o in c.outputs] for c in found] == expected
    assert all(o.logprobs is None for c in found for o in c.outputs)
