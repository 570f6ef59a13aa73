"""Every supported architecture through the real engine gives the tokens that transformers' generate gives."""

import functools
import random

import pytest
import torch
from engine.real_engine import Limits, Reference, build_engine, completions
from tiny_models import TINY, VOCAB_SIZE, WINDOW, tiny_model

from batchpaged.attention import cpu
from batchpaged.engine.engine import Completion
from batchpaged.engine.sampling_params import SamplingParams

NUM_TOKENS = 8
GREEDY = SamplingParams(max_tokens=NUM_TOKENS)


def _prompts() -> list[list[int]]:
    """Prefixes shared at several depths, inside and between blocks; all far longer than the sliding window."""
    rng = random.Random(0)
    tokens = lambda n: [rng.randrange(3, VOCAB_SIZE) for _ in range(n)]  # noqa: E731
    system, document = tokens(4 * WINDOW + 3), tokens(2 * WINDOW)
    rows = [system + document + tokens(n) for n in (1, 5, 9)]
    rows += [system + tokens(11), system[:19] + tokens(13), system, tokens(WINDOW - 2), rows[0]]
    return rows


PROMPTS = _prompts()


@functools.cache
def reference(name: str, num_tokens: int = NUM_TOKENS) -> Reference:
    return Reference(name, PROMPTS, num_tokens)


def generate(name: str, limits: Limits, params: SamplingParams = GREEDY) -> tuple[list[Completion], int]:
    """-> completions in the prompts' order, number of preemptions"""
    engine = build_engine(tiny_model(name), limits)
    outputs = completions(engine, PROMPTS, params)
    for output, prompt in zip(outputs, PROMPTS, strict=True):
        assert output.num_prompt_tokens == len(prompt)
        assert output.num_cached_tokens + output.num_prefilled_tokens == len(prompt)
    return outputs, engine.scheduler.num_preemptions


@pytest.mark.parametrize("name", TINY)
def test_tokens_are_those_of_generate(name: str) -> None:
    outputs, _ = generate(name, Limits())
    reference(name).check([output.token_ids for output in outputs])
    assert sum(output.num_cached_tokens for output in outputs) > 2 * len(PROMPTS[0])


@pytest.mark.parametrize("name", TINY)
def test_the_comparison_is_not_empty(name: str) -> None:
    """Few tokens tie, and the model does not say the same thing all the time."""
    tokens = [token for row in reference(name).tokens for token in row]
    assert reference(name).num_decided > 0.9 * len(tokens)
    assert len(set(tokens)) > 2


SETTINGS = {
    **{f"blocks of {size}": Limits(num_blocks=3200 // size, block_size=size) for size in (8, 16, 32, 64, 128)},
    **{f"budget {n}": Limits(max_batch_tokens=n) for n in (3, 8, 64, 2048)},
    "no cache": Limits(prefix_cache=False),
    "no cache, budget 2048": Limits(prefix_cache=False, max_batch_tokens=2048),
    "one at a time": Limits(max_sequences=1, max_batch_tokens=2048),
}


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_tokens_do_not_depend_on_settings(name: str, setting: str) -> None:
    outputs, _ = generate(name, SETTINGS[setting])
    reference(name).check([output.token_ids for output in outputs])
    if not SETTINGS[setting].prefix_cache:
        assert all(output.num_cached_tokens == 0 for output in outputs)


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss", "deepseek_v3", "gemma4_text"])
@pytest.mark.parametrize("prefix_cache", [True, False])
def test_tokens_do_not_depend_on_preemption(name: str, prefix_cache: bool) -> None:
    """In a pool of two or three sequences some lose their blocks while they run, and start again."""
    limits = Limits(num_blocks=27, max_batch_tokens=64, prefix_cache=prefix_cache)
    outputs, num_preemptions = generate(name, limits, SamplingParams(max_tokens=24))
    reference(name, 24).check([output.token_ids for output in outputs])
    assert num_preemptions > 0
    assert sum(output.num_recomputed_tokens for output in outputs) > 0


def test_repetition_penalty_sees_prompt_and_completion() -> None:
    expected = Reference("llama", PROMPTS, NUM_TOKENS, repetition_penalty=3.0)
    outputs, _ = generate("llama", Limits(), SamplingParams(max_tokens=NUM_TOKENS, repetition_penalty=3.0))
    expected.check([output.token_ids for output in outputs])
    assert expected.tokens != reference("llama").tokens


def test_tokens_do_not_depend_on_their_order() -> None:
    engine = build_engine(tiny_model(), Limits())
    order = random.Random(1).sample(range(len(PROMPTS)), len(PROMPTS))
    outputs = completions(engine, [PROMPTS[i] for i in order], GREEDY)
    by_row = dict(zip(order, outputs, strict=True))
    reference("llama").check([by_row[i].token_ids for i in range(len(PROMPTS))])


def test_rows_that_join_a_running_batch_give_the_same_tokens() -> None:
    engine, outputs = build_engine(tiny_model(), Limits(max_batch_tokens=40)), {}
    for index, prompt in enumerate(PROMPTS):
        engine.add(prompt, GREEDY, str(index), index)
        for _ in range(3):
            outputs |= {completion.tag: completion for completion in engine.step()}
    while engine.has_unfinished:
        outputs |= {completion.tag: completion for completion in engine.step()}
    reference("llama").check([outputs[index].token_ids for index in range(len(PROMPTS))])


def test_a_second_round_is_served_from_the_cache() -> None:
    engine = build_engine(tiny_model(), Limits())
    first = completions(engine, PROMPTS, GREEDY)
    second = completions(engine, PROMPTS, GREEDY)
    assert [output.token_ids for output in second] == [output.token_ids for output in first]
    assert [output.num_prefilled_tokens for output in second] == [1] * len(PROMPTS)


def test_a_mistake_in_attention_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its window a model generates other tokens: prompts and weights are sensitive enough to tell."""
    level = cpu._level
    monkeypatch.setattr(cpu, "_level", lambda items, num_groups, window: level(items, num_groups, None))
    outputs, _ = generate("mistral", Limits())
    with pytest.raises(AssertionError):
        reference("mistral").check([output.token_ids for output in outputs])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_short_types_run_and_mostly_agree(dtype: torch.dtype) -> None:
    """Rounding moves some tokens; the first one, from the prompt alone, stays where its lead is clear."""
    engine = build_engine(tiny_model().to(dtype), Limits())
    outputs = completions(engine, PROMPTS, GREEDY)
    expected = reference("llama")
    clear = [i for i, leads in enumerate(expected.leads) if leads[0] > 0.5]
    assert len(clear) > 2
    assert [outputs[i].token_ids[0] for i in clear] == [expected.tokens[i][0] for i in clear]
