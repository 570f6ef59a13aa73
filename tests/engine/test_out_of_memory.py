"""Where memory runs out in a step, the same sequences are computed in smaller ones, and nothing else changes."""

import random
from dataclasses import replace

import pytest
import short_memory
import tiny_runs
import torch
from engine.harness import EOS, VOCAB_SIZE, Harness, Settings, prefix_tree
from engine.test_engine import LIMITS, Numbers
from fake_model import FakeRunner, reference_tokens
from hypothesis import given, settings
from hypothesis import strategies as st

from batchpaged import api
from batchpaged.engine.engine import Engine, run_to_end
from batchpaged.engine.model_runner import ModelRunner, _is_out_of_memory
from batchpaged.engine.sampling_params import SamplingParams
from batchpaged.engine.stop import StopCheck


class SmallRunner(FakeRunner):
    """Fails after the work is done, for steps of too many tokens or sequences."""

    max_tokens, max_sequences = 10**9, 10**9

    def execute(self, plan):
        result = super().execute(plan)
        if plan.num_tokens > self.max_tokens or len(plan.sequences) > self.max_sequences:
            raise MemoryError
        return result


def make_engine(max_tokens, max_sequences, steps_ahead=0):
    runner = SmallRunner(LIMITS.num_blocks, LIMITS.block_size, VOCAB_SIZE, LIMITS.max_batch_tokens)
    runner.max_tokens, runner.max_sequences = max_tokens, max_sequences
    return Engine(runner, replace(LIMITS, steps_ahead=steps_ahead), StopCheck(Numbers(), frozenset({EOS})))


@settings(max_examples=40)
@given(st.integers(0, 1000), st.integers(LIMITS.block_size, 16), st.integers(1, 8), st.integers(0, 1))
def test_every_row_is_computed_as_if_memory_had_sufficed(seed, max_tokens, max_sequences, steps_ahead):
    engine, outputs = make_engine(max_tokens, max_sequences, steps_ahead), []
    prompts = prefix_tree(random.Random(seed), 12)
    for index, prompt in enumerate(prompts):
        engine.add(prompt, SamplingParams(max_tokens=9), f"row {index}", index)
    run_to_end(engine, outputs.append)
    assert sorted(output.tag for output in outputs) == list(range(12))
    for output in outputs:
        assert list(output.token_ids) == reference_tokens(prompts[output.tag], 9, VOCAB_SIZE, EOS)
        assert output.num_cached_tokens + output.num_prefilled_tokens == output.num_prompt_tokens
    assert engine.pool.num_available == engine.pool.num_blocks
    assert engine.num_out_of_memory <= 4  # each time it halves


def test_what_does_not_fit_alone_is_an_error():
    engine = make_engine(max_tokens=0, max_sequences=8)
    engine.add([1, 2, 3], SamplingParams(max_tokens=2), "row", 0)
    with pytest.raises(MemoryError):
        run_to_end(engine, print)


def test_shrinking_keeps_every_invariant():
    harness = Harness(Settings(num_blocks=40))
    for prompt in prefix_tree(random.Random(3), 30):
        harness.add(prompt, 12)
    for number in range(30):
        harness.step()
        if number % 10 == 5:
            assert harness.scheduler.shrink(harness.scheduler.schedule()) or not harness.scheduler.running
            harness.scheduler.check()
    harness.run()
    harness.check_outputs()


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("The size of tensor a (3) must match"), False),
    ],
)
def test_torch_says_it_in_many_ways(error, is_memory):
    class Runner(ModelRunner):
        def __init__(self):
            pass

        def _start(self, plan):
            raise error

    assert _is_out_of_memory(error) == is_memory
    with pytest.raises(MemoryError if is_memory else RuntimeError):
        Runner().start(None)


@pytest.fixture
def short():
    tiny_runs.finished_run()  # which other tests look at, and which has memory enough
    tiny_runs.on_workers(short_memory.run_short)
    yield
    tiny_runs.on_workers(short_memory.run_long)


def test_a_run_goes_on_and_its_report_says_so(short):
    notes, run_dir = tiny_runs.Notes(), tiny_runs.new_path("short")
    result = api.run(tiny_runs.pipeline(run_dir, gates=[]), reporter=notes)
    columns = ["id", "completion", "status", "error", "prompt_hash"]
    expected = tiny_runs.finished_run().run_dir
    assert tiny_runs.output(run_dir, columns) == tiny_runs.output(expected, columns)
    [worker] = result.report["workers"]
    num_times, num_tokens = worker["num_out_of_memory"], worker["max_batch_tokens"]
    assert num_times > 0 and num_tokens <= short_memory.MOST_TOKENS
    assert any("ran out of memory; its steps have at most" in line for line in notes.lines)
    assert f"Memory ran out {num_times} times; steps went down to {num_tokens} tokens" in (run_dir / "report.html").read_text()
