"""The engine's surface: rows in, completions out."""

import random

import pytest
from engine.harness import EOS, VOCAB_SIZE, prefix_tree
from fake_model import FakeRunner, reference_tokens
from hypothesis import given, strategies as st

from batchpaged.engine.engine import Completion, Engine, EngineLimits, row_seed, run_to_end
from batchpaged.engine.sampling_params import SamplingParams
from batchpaged.engine.stop import StopCheck
from batchpaged.errors import RowError

ANY_TEXT = st.text(st.characters(exclude_categories=()))  # lone surrogates too
LIMITS = EngineLimits(
    num_blocks=40, block_size=4, max_batch_tokens=16, max_sequences=8, max_model_len=100, prefix_cache=True
)


class Numbers:
    """A tokenizer that writes token ids as numbers."""

    def decode(self, token_ids: list[int], skip_special_tokens: bool) -> str:
        return " ".join(map(str, token_ids))


def make_engine(limits: EngineLimits = LIMITS, eos: frozenset[int] = frozenset({EOS})) -> Engine:
    runner = FakeRunner(limits.num_blocks, limits.block_size, VOCAB_SIZE, limits.max_batch_tokens)
    return Engine(runner, limits, StopCheck(Numbers(), eos))


def test_every_row_comes_back_once_with_its_tag_and_counts() -> None:
    engine, outputs = make_engine(), []
    prompts = prefix_tree(random.Random(0), 30)
    for index, prompt in enumerate(prompts):
        engine.add(prompt, SamplingParams(max_tokens=9), f"row {index}", ("unit", index))
    assert engine.num_unfinished == 30
    run_to_end(engine, outputs.append)
    assert not engine.has_unfinished and engine.num_unfinished == 0
    assert sorted(output.tag[1] for output in outputs) == list(range(30))
    for output in outputs:
        _check(output, prompts[output.tag[1]])


def _check(output: Completion, prompt: list[int]) -> None:
    assert list(output.token_ids) == reference_tokens(prompt, 9, VOCAB_SIZE, EOS)
    assert output.finish_reason == ("stop" if output.token_ids[-1] == EOS else "length")
    assert output.text == Numbers().decode([token for token in output.token_ids if token != EOS], True)
    assert output.num_prompt_tokens == len(prompt) == output.num_cached_tokens + output.num_prefilled_tokens


def test_a_step_without_work_does_nothing() -> None:
    engine = make_engine()
    assert engine.step() == []
    assert engine.num_steps == 0


def test_a_refused_row_leaves_no_trace() -> None:
    engine = make_engine()
    with pytest.raises(RowError, match="101"):
        engine.add([1] * 101, SamplingParams(max_tokens=1), "a", 0)
    assert not engine.has_unfinished and engine.num_unfinished == 0


def test_the_caller_may_reuse_its_list() -> None:
    engine, outputs, prompt = make_engine(), [], [1, 2, 3]
    engine.add(prompt, SamplingParams(max_tokens=3), "a", 0)
    prompt.clear()
    run_to_end(engine, outputs.append)
    assert list(outputs[0].token_ids) == reference_tokens([1, 2, 3], 3, VOCAB_SIZE, EOS)


def test_steps_and_their_time_are_counted() -> None:
    engine = make_engine(eos=frozenset())
    engine.add([1, 2, 3], SamplingParams(max_tokens=4), "a", 0)
    run_to_end(engine, lambda output: None)
    assert engine.num_steps == 4
    assert engine.busy_seconds > 0


@given(run_seed=st.integers(-(2**70), 2**70), row=ANY_TEXT, other=ANY_TEXT)
def test_a_rows_seed_follows_from_run_seed_and_row_key(run_seed: int, row: str, other: str) -> None:
    seed = row_seed(run_seed, row)
    assert 0 <= seed < 2**64
    assert seed == row_seed(run_seed, row)
    assert (seed == row_seed(run_seed, other)) == (row == other)
    assert seed != row_seed(run_seed + 1, row)
