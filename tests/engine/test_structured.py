"""Constrained completions: the engine's against a straight loop over transformers' model with the same library's masks."""

import json
from functools import cache

import numpy as np
import pytest
import torch
from engine.real_engine import Limits, build_engine, completions, tiny_grammars
from hypothesis import given, settings, strategies as st
from tiny_models import tiny_model, tiny_tokenizer

from batchpaged.config import StructuredConfig
from batchpaged.engine.grammar import allowed_tokens
from batchpaged.engine.sampling_params import SamplingParams
from batchpaged.errors import RowError
from batchpaged.structured.grammar import grammar_of, schema_grammar

END = 2  # the tiny tokenizer's end token, by which a grammar that could go on ends
ANSWER = {
    "type": "object",
    "properties": {"answer": {"type": "string", "maxLength": 6}, "supported": {"type": "boolean"}},
    "required": ["answer", "supported"],
    "additionalProperties": False,
}
CONSTRAINTS = (
    {"json_schema": ANSWER},
    {"json_schema": {"type": "array", "items": {"type": "integer", "minimum": 7, "maximum": 120}, "maxItems": 3}},
    {"regex": "[ab]+c{2,4}"},
    {"choices": ["yes", "no", "not in the context"]},
    None,
)
PROMPTS = [list(range(40 + 3 * i, 70 + 2 * i)) for i in range(len(CONSTRAINTS))]
MAX_TOKENS = 48
TINY_CACHE = Limits(num_blocks=13, block_size=8, max_batch_tokens=11)  # barely more than one sequence
LIMITS = {
    "roomy": Limits(),
    "steps ahead": Limits(steps_ahead=1),
    "tiny cache": TINY_CACHE,
    "no prefix cache": Limits(prefix_cache=False),
    "forced tokens cut by the budget": Limits(max_batch_tokens=3, max_sequences=3),
}


def grammar(constraint):
    return None if constraint is None else grammar_of(StructuredConfig(**constraint))


GRAMMARS = [grammar(constraint) for constraint in CONSTRAINTS]


@cache
def straight_loop(max_tokens: int = MAX_TOKENS) -> list[list[int]]:
    """One row at a time, without a cache: the best allowed token of transformers' logits, also where only one is."""
    model = tiny_model()
    return [_continue(model, prompt, text, max_tokens) for prompt, text in zip(PROMPTS, GRAMMARS, strict=True)]


def _continue(model, prompt, text, max_tokens):
    state = None if text is None else tiny_grammars().start(text)
    ids = list(prompt)
    while len(ids) - len(prompt) < max_tokens and not (state and state.is_over):
        logits = model(torch.tensor([ids])).logits[0, -1].numpy().copy()
        if state is not None:
            bits = np.unpackbits(allowed_tokens([state]).view(np.uint8), bitorder="little")[: len(logits)]
            logits[bits == 0] = -np.inf
        ids.append(int(logits.argmax()))
        if state is not None:
            state.accept(ids[-1])
    return ids[len(prompt) :]


def run(limits: Limits = Limits(), grammars=GRAMMARS, prompts=PROMPTS, **params):
    engine = build_engine(tiny_model(), limits)
    done = completions(engine, prompts, SamplingParams(**{"max_tokens": MAX_TOKENS, **params}), grammars)
    return done, engine


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
def test_greedy_is_the_masked_argmax_of_the_model_alone(limits):
    done, engine = run(limits)
    assert [list(c.token_ids) for c in done] == straight_loop()
    for completion, prompt in zip(done, PROMPTS, strict=True):
        assert completion.num_prompt_tokens == completion.num_cached_tokens + completion.num_prefilled_tokens == len(prompt)
    assert engine.scheduler.counts.generated == sum(len(c.token_ids) for c in done)


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_preemption_at_any_time_changes_nothing(prefix_cache):
    """Also where forced tokens wait to be computed: they are computed again as any others."""
    engine = build_engine(tiny_model(), Limits(max_batch_tokens=64, prefix_cache=prefix_cache))
    for i, prompt in enumerate(PROMPTS):
        engine.add(prompt, SamplingParams(max_tokens=MAX_TOKENS), str(i), i, GRAMMARS[i])
    done = {}
    while engine.has_unfinished:
        done |= {c.tag: list(c.token_ids) for c in engine.step()}
        engine.scheduler.check()
        if engine.num_steps % 5 == 0 and engine.scheduler.running:
            engine.scheduler.preempt_last()
    assert [done[i] for i in range(len(PROMPTS))] == straight_loop()
    assert engine.scheduler.num_preemptions > 5


def test_forced_tokens_take_no_step():
    done, engine = run(grammars=[GRAMMARS[0]] * len(PROMPTS))
    num_forced = engine.scheduler.counts.forced
    assert num_forced > len(PROMPTS) * len('"answer": "supported": ')
    assert engine.num_steps < max(len(c.token_ids) for c in done)
    assert all(set(json.loads(c.text)) == {"answer", "supported"} for c in done)


def test_texts_are_what_the_grammars_say():
    done, _ = run()
    assert isinstance(json.loads(done[0].text)["supported"], bool)
    assert all(7 <= number <= 120 for number in json.loads(done[1].text))
    assert done[3].text in CONSTRAINTS[3]["choices"]
    assert [c.finish_reason for c in done] == ["stop", "stop", "stop" if done[2].text.endswith("c") else "length", "stop", "length"]


@pytest.mark.parametrize("max_tokens", [1, 2, 9, 14])
def test_max_tokens_cuts_forced_tokens_as_well(max_tokens):
    """What is left is a beginning of the whole, and says so."""
    done, engine = run(max_tokens=max_tokens)
    for cut, whole in zip(done, straight_loop(), strict=True):
        assert list(cut.token_ids) == whole[:max_tokens]
        assert cut.finish_reason == ("stop" if len(whole) < max_tokens else "length") or len(whole) == max_tokens
    assert engine.scheduler.counts.generated == sum(len(c.token_ids) for c in done)


def test_a_stop_string_ends_a_structure_as_any_text():
    done, _ = run(grammars=[GRAMMARS[0]] * len(PROMPTS), stop=('": ',))
    assert {(c.text, c.finish_reason) for c in done} == {('{"answer', "stop")}


def test_a_stop_token_may_be_forced():
    done, _ = run(grammars=[GRAMMARS[0]] * len(PROMPTS), stop_token_ids=frozenset(tiny_tokenizer().encode(":")))
    assert {(c.text, c.finish_reason) for c in done} == {('{"answer"', "stop")}


def test_sampled_tokens_are_allowed_ones_and_do_not_depend_on_the_batch():
    params = {"temperature": 1.5, "top_p": 0.9, "repetition_penalty": 1.2}
    done, _ = run(**params)
    assert [c.token_ids for c in done] == [c.token_ids for c in run(TINY_CACHE, **params)[0]]
    assert done[3].text in CONSTRAINTS[3]["choices"]


def test_a_grammar_that_breaks_off_is_an_error_of_its_row():
    """The others go on; what was written is no completion."""
    engine = build_engine(tiny_model(), Limits())
    done = []
    for i in range(2):
        engine.add(PROMPTS[i], SamplingParams(max_tokens=9), str(i), i, GRAMMARS[0])
    engine.step()
    engine.scheduler.running[0].grammar.accept(0)  # as one of the library's limits would end it
    while engine.has_unfinished:
        done += engine.step()
    assert {c.tag: c.error for c in done} == {0: "its grammar could not be followed to the end (InternalError)", 1: None}


def test_a_grammar_that_cannot_be_followed_is_refused_as_a_row():
    engine = build_engine(tiny_model(), Limits())
    with pytest.raises(RowError, match="of 16 characters, cannot be followed"):
        engine.add(PROMPTS[0], SamplingParams(), "a", 0, '{"grammars": []}')
    assert not engine.has_unfinished


def test_completions_of_one_grammar_go_their_own_ways():
    grammars = tiny_grammars()
    state, other = grammars.start(GRAMMARS[3]), grammars.start(GRAMMARS[3])
    yes, no = tiny_tokenizer().encode("yes"), tiny_tokenizer().encode("no")
    state.accept(yes[0])
    assert state.forced() == yes[1:]
    for token in no:
        other.accept(token)
    assert other.error is None and not other.is_over  # "not in the context" may follow
    other.accept(END)
    assert other.is_over and other.error is None


_LEAVES = st.sampled_from(
    [{"type": "boolean"}, {"type": "null"}, {"type": "integer", "minimum": -3, "maximum": 40}, {"enum": ["a", "b", 3]}]
)
_SCHEMAS = st.recursive(
    _LEAVES | st.integers(0, 4).map(lambda n: {"type": "string", "maxLength": n}),
    lambda inner: st.fixed_dictionaries({"type": st.just("array"), "items": inner, "maxItems": st.integers(0, 2)})
    | st.dictionaries(st.sampled_from("pqr"), inner, min_size=1).map(
        lambda p: {"type": "object", "properties": p, "required": sorted(p), "additionalProperties": False}
    ),
    max_leaves=3,
)


def fits(value, schema) -> bool:
    if "enum" in schema:
        return value in schema["enum"] and not isinstance(value, bool)
    if schema["type"] == "array":
        return isinstance(value, list) and len(value) <= schema["maxItems"] and all(fits(v, schema["items"]) for v in value)
    if schema["type"] == "object":
        inner = schema["properties"]
        return isinstance(value, dict) and set(value) == set(inner) and all(fits(v, inner[k]) for k, v in value.items())
    if schema["type"] == "integer":
        return type(value) is int and schema["minimum"] <= value <= schema["maximum"]
    if schema["type"] == "string":
        return isinstance(value, str) and len(value) <= schema["maxLength"]
    return isinstance(value, {"boolean": bool, "null": type(None)}[schema["type"]])


@settings(max_examples=25, deadline=None)
@given(schemas=st.lists(_SCHEMAS, min_size=1, max_size=4), seed=st.integers(0, 9), limits=st.sampled_from([Limits(), TINY_CACHE]))
def test_whatever_ends_fits_its_schema(schemas, seed, limits):
    """Rows with grammars of their own in one batch, sampled at random; a cut one is a beginning of JSON."""
    grammars = [schema_grammar(json.dumps(schema)) for schema in schemas]
    done, engine = run(limits, grammars, PROMPTS[: len(schemas)], temperature=3.0, seed=seed)
    engine.scheduler.check()
    for completion, schema in zip(done, schemas, strict=True):
        assert completion.error is None
        if completion.finish_reason == "stop":
            assert fits(json.loads(completion.text), schema)
