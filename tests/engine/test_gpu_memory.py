"""What a GPU's KV cache may take, from measured numbers."""

import gc
import weakref
from collections.abc import Callable
from itertools import combinations

import pytest
import torch
from engine.real_engine import Limits, build_engine, completions
from engine.test_decode_steps import BLOCK_SIZE, NUM_BLOCKS, make_runner
from tiny_models import tiny_model, tiny_tokenizer

from batchpaged.attention.reference import TorchAttention
from batchpaged.config import EngineConfig
from batchpaged.engine import gpu_build
from batchpaged.engine.engine import Engine
from batchpaged.engine.gpu_build import graph_runner, measured_kv_bytes
from batchpaged.engine.gpu_memory import GpuMemory, kv_cache_share, measure_gpu_memory, worst_steps
from batchpaged.engine.release import release_memory
from batchpaged.engine.replay import PlainReplay
from batchpaged.engine.sampling_params import SamplingParams
from batchpaged.engine.stop import StopCheck
from batchpaged.errors import ModelError

GIB = 2**30


@pytest.mark.parametrize(
    ("total", "free", "step", "fraction", "expected"),
    [
        (80, 60, 5, 0.9, 72 - 20 - 5),
        (80, 60, 5, 1.0, 55),
        (80, 60, 0, 0.5, 20),
        (80, 8, 5, 0.9, 0),  # others have taken more than the fraction leaves
        (80, 60, 70, 0.9, 0),
    ],
)
def test_the_cache_gets_what_model_step_and_others_leave(total, free, step, fraction, expected) -> None:
    share = kv_cache_share(GpuMemory(total * GIB, free * GIB, step * GIB), fraction)
    assert abs(share - expected * GIB) <= 1


class FakeGpu:
    """80 bytes, 20 of which are taken; a step takes 7 more, and torch keeps 3 of those that are free again."""

    def __init__(self) -> None:
        self.reserved, self.peak, self.kept = 20, 0, 6

    def step(self) -> None:
        self.peak = max(self.peak, self.reserved + 7)
        self.kept = 3


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    fake = FakeGpu()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: setattr(fake, "kept", 0))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (80 - fake.reserved - fake.kept, 80))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: fake.reserved + fake.kept)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: fake.peak)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: setattr(fake, "peak", 0))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    return fake


def test_a_step_is_measured_beside_the_model_alone(gpu: FakeGpu) -> None:
    assert measure_gpu_memory(gpu.step, "cuda:0") == GpuMemory(total=80, free=60, step=7)
    assert gpu.kept == 0, "what the step had is not given back"


@pytest.mark.parametrize(
    ("max_batch_tokens", "max_sequences", "max_model_len", "block_size"),
    [(64, 8, 100, 8), (7, 256, 33, 16), (50, 3, 20, 8), (1, 1, 2, 8)],
)
def test_the_worst_steps_are_as_large_as_steps_can_be(max_batch_tokens, max_sequences, max_model_len, block_size) -> None:
    worst = worst_steps(max_batch_tokens, max_sequences, max_model_len, block_size)
    prefill, decode = worst.plans
    assert prefill.num_tokens == max_batch_tokens
    assert len(prefill.sequences) == len(decode.sequences) == decode.num_tokens == min(max_sequences, max_batch_tokens)
    assert len(set(prefill.slots)) == max_batch_tokens
    assert {step.context_length for step in decode.sequences} == {max_model_len}
    for plan in worst.plans:
        assert all(step.sample is not None for step in plan.sequences)
        for step in plan.sequences:
            assert len(step.block_table) == -(-step.context_length // block_size)
            assert set(step.block_table) <= set(range(worst.num_blocks))
    if worst.num_blocks > 1:
        assert all(a.block_table[0] != b.block_table[0] for a, b in combinations(decode.sequences, 2))


def test_the_worst_steps_run() -> None:
    limits = Limits()
    worst = worst_steps(limits.max_batch_tokens, 4, 100, 8)
    runner = make_runner(tiny_model(), make_replay=None, num_blocks=worst.num_blocks)
    for plan in worst.plans:
        assert len(runner.start(plan)().token_ids) == 4


def test_frozen_objects_are_released() -> None:
    """What was loaded is exempt from garbage collection while the engine runs, and must not outlive it."""
    class Cycle:
        pass

    thing = Cycle()
    thing.itself = thing
    is_gone = weakref.ref(thing)
    gc.freeze()
    del thing
    gc.collect()
    assert is_gone() is not None
    release_memory()
    assert is_gone() is None


def test_the_cache_of_the_measured_steps_themselves_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    model, made = tiny_model(), []
    worst = worst_steps(16, 4, 40, 8)

    def make_backend(num_blocks: int) -> TorchAttention:
        made.append(num_blocks)
        return make_runner(model, None, num_blocks - 1)._backend

    def measure(run_steps: Callable[[], None], device: str) -> GpuMemory:
        run_steps()
        return GpuMemory(total=10_000, free=8_000, step=1_000 + 100 * worst.num_blocks)

    monkeypatch.setattr(gpu_build, "measure_gpu_memory", measure)
    config = EngineConfig(block_size=8, max_batch_tokens=16, max_sequences=4, gpu_memory_fraction=0.5)
    assert measured_kv_bytes(model, config, 40, make_backend, block_bytes=100) == 5_000 - 2_000 - 1_000
    assert made == [worst.num_blocks]


def test_a_step_that_does_not_fit_beside_the_model_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(run_steps: Callable[[], None], device: str) -> GpuMemory:
        raise MemoryError

    monkeypatch.setattr(gpu_build, "measure_gpu_memory", measure)
    with pytest.raises(ModelError, match="engine.max_batch_tokens = 2048 tokens does not fit .* lower it"):
        measured_kv_bytes(tiny_model(), EngineConfig(), 40, lambda num_blocks: None, block_bytes=100)


def test_the_runner_of_a_gpu_gives_the_tokens_of_any_other() -> None:
    model = tiny_model()
    runner = graph_runner(model, make_runner(model, None)._backend, BLOCK_SIZE, 5, PlainReplay)
    prompts = [[1, *range(10, 30), last] for last in range(50, 62)]
    params = SamplingParams(max_tokens=8)
    limits = Limits(NUM_BLOCKS, BLOCK_SIZE, 24, 5, steps_ahead=1).engine_limits()
    outputs = completions(Engine(runner, limits, StopCheck(tiny_tokenizer(), frozenset())), prompts, params)
    expected = completions(build_engine(tiny_model(), Limits(block_size=BLOCK_SIZE)), prompts, params)
    assert [c.token_ids for c in outputs] == [c.token_ids for c in expected]
