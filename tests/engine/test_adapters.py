"""Rows of several LoRA adapters, and of none, in one engine: each gets what its adapter, merged into the weights, gives alone."""

import random

import pytest
import tiny_adapters
from engine.real_engine import Limits, build_engine, completions
from hypothesis import given, settings, strategies as st
from tiny_models import reference_generate, tiny_model

from batchpaged.engine.sampling_params import SamplingParams
from batchpaged.models.adapters import find_adapters
from batchpaged.models.fused import fuse

NUM_TOKENS = 16
PROMPTS = [list(range(30, 54 + i)) for i in range(5)]  # they begin alike
TINY_CACHE = Limits(num_blocks=8, block_size=8, max_batch_tokens=11)
SOME = r".*layers\.[01]\.self_attn\.(q_proj|v_proj)"


@pytest.fixture(scope="module")
def adapters(tmp_path_factory):
    """(name, folder): one of all linear layers, one of some, with rslora."""
    root = tmp_path_factory.mktemp("adapters")
    all_layers = tiny_adapters.save_adapter(root / "a", 1)
    some_layers = tiny_adapters.save_adapter(root / "b", 2, SOME, use_rslora=True)
    return {"a": all_layers, "b": some_layers}


@pytest.fixture(scope="module")
def expected(adapters):
    """By name (None: the base) what transformers' generate gives for each prompt, the adapter merged into the weights."""
    models = {name: tiny_adapters.merged_model(folder) for name, folder in [*adapters.items(), (None, None)]}
    return {name: [reference_generate(model, prompt, NUM_TOKENS) for prompt in PROMPTS] for name, model in models.items()}


def run(adapters, rows, limits=Limits(), is_fused=False, name="llama"):
    """rows: (index of the prompt, name of the adapter) -> token ids of each, and the engine"""
    model = tiny_model(name)
    found = find_adapters(tuple((name, str(folder)) for name, folder in adapters.items()))
    engine = build_engine(model, limits, adapters=found, exchange=fuse if is_fused else lambda model: None)
    identities = {adapter.name: adapter.identity for adapter in found}
    prompts, chosen = [PROMPTS[i] for i, _ in rows], [identities.get(name) for _, name in rows]
    done = completions(engine, prompts, SamplingParams(max_tokens=NUM_TOKENS), adapters=chosen)
    return [list(completion.token_ids) for completion in done], engine


ROWS = [(i, name) for i in range(len(PROMPTS)) for name in ("a", None, "b")]


@pytest.mark.parametrize("is_fused", [False, True])
@pytest.mark.parametrize("limits", [Limits(), Limits(steps_ahead=1), Limits(prefix_cache=False), TINY_CACHE])
def test_each_row_gets_what_its_adapter_gives_alone(adapters, expected, limits, is_fused):
    """Equal prompts of different adapters never share a block, and those of one adapter do."""
    generated, engine = run(adapters, ROWS, limits, is_fused)
    assert generated == [expected[name][i] for i, name in ROWS]
    assert expected["a"] != expected[None] != expected["b"]
    if limits == Limits():
        # Of each adapter the first prompt is computed, and of the others the token that each has more.
        assert engine.scheduler.counts.prefilled == 3 * len(PROMPTS[-1])


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**16), limits=st.sampled_from([Limits(), TINY_CACHE, Limits(max_sequences=2)]))
def test_the_order_of_rows_changes_nothing(adapters, expected, seed, limits):
    rows = random.Random(seed).choices(ROWS, k=8)
    generated, engine = run(adapters, rows, limits)
    assert generated == [expected[name][i] for i, name in rows]
    engine.scheduler.check()


def test_layers_that_keep_their_weights_the_other_way_round_are_adapted_as_well(tmp_path):
    folder = tiny_adapters.save_adapter(tmp_path / "a", 3, r".*\.(c_attn|c_fc)", model="gpt2", fan_in_fan_out=True)
    merged = tiny_adapters.merged_model(folder, "gpt2")
    generated, _ = run({"a": folder}, [(0, "a"), (0, None)], name="gpt2")
    assert generated[0] == reference_generate(merged, PROMPTS[0], NUM_TOKENS) != generated[1]
    assert generated[1] == reference_generate(tiny_model("gpt2"), PROMPTS[0], NUM_TOKENS)
