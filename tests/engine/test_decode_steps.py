"""Decode steps in buckets, on static buffers: the same logits and tokens as in any other step."""

import random
from collections.abc import Callable
from contextlib import contextmanager

import pytest
import torch
from engine.real_engine import Limits, build_engine, completions
from tiny_models import tiny_model, tiny_tokenizer
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from batchpaged.attention.interface import NAME, register
from batchpaged.attention.reference import TorchAttention
from batchpaged.attention.static_decode import StaticShape, static_shape
from batchpaged.engine import decode_steps
from batchpaged.engine.buckets import bucket_of, decode_buckets, padded
from batchpaged.engine.decode_steps import DecodeSteps
from batchpaged.engine.engine import Engine
from batchpaged.engine.model_runner import ModelRunner, compute_logits
from batchpaged.engine.replay import RUNS_BEFORE_CAPTURE, CudaGraphs, PlainReplay
from batchpaged.engine.sampling_params import SamplingParams
from batchpaged.engine.step import PendingToken, SampleRequest, SequenceStep, StepPlan
from batchpaged.engine.stop import StopCheck
from batchpaged.models.layers import attention_layers

NUM_BLOCKS, BLOCK_SIZE, MAX_SEQUENCES = 60, 8, 12


def test_buckets_hold_every_number_of_sequences() -> None:
    assert decode_buckets(1) == (1,)
    assert decode_buckets(7) == (1, 2, 4, 7)
    assert decode_buckets(40) == (1, 2, 4, 8, 16, 24, 32, 40)
    for largest in (1, 3, 8, 9, 100, 256):
        buckets = decode_buckets(largest)
        for n in range(1, largest + 1):
            size = bucket_of(n, buckets)
            assert n <= size < max(2 * n, n + 8)


def test_tables_have_few_sizes() -> None:
    shapes = {n: static_shape(decode_plan([3, n * BLOCK_SIZE])).num_blocks for n in range(1, 40)}
    assert sorted(set(shapes.values())) == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48]
    assert all(n <= size <= 1.5 * n for n, size in shapes.items())


def decode_plan(lengths: list[int], seed: int = 0, num_shared: int = 0) -> StepPlan:
    """One token of each sequence; tables are in random order, and disjoint but for their first `num_shared` blocks."""
    rng = random.Random(seed)
    free = rng.sample(range(NUM_BLOCKS), NUM_BLOCKS)
    shared = tuple(free.pop() for _ in range(num_shared))
    sequences, slots = [], []
    for seq_id, length in enumerate(lengths):
        table = shared + tuple(free.pop() for _ in range(-(-length // BLOCK_SIZE) - num_shared))
        request = SampleRequest(SamplingParams(), 0, length, None)
        sequences.append(SequenceStep(seq_id, 1, length, table, request))
        slots.append(table[-1] * BLOCK_SIZE + (length - 1) % BLOCK_SIZE)
    token_ids = tuple(rng.randrange(5, 200) for _ in lengths)
    return StepPlan(token_ids, tuple(n - 1 for n in lengths), tuple(slots), tuple(sequences), ())


def test_padding_writes_to_the_scratch_block_alone() -> None:
    plan = decode_plan([3, 9])
    step = padded(plan, 4, NUM_BLOCKS, BLOCK_SIZE)
    assert step.num_tokens == len(step.positions) == len(step.slots) == len(step.sequences) == 4
    assert step.slots[:2] == plan.slots and set(step.slots[2:]) == {NUM_BLOCKS * BLOCK_SIZE}
    assert {s.block_table for s in step.sequences[2:]} == {(NUM_BLOCKS,)}


PLANS = [
    *(decode_plan(n, seed=len(n)) for n in ([1], [40, 3, 17], [5] * 9, [8, 16, 24, 23, 25], [30, 3, 17], [2] * 12, [1, 1])),
    decode_plan([40, 33, 50, 34, 41], num_shared=4),
    decode_plan([25, 17, 18, 40], num_shared=2),
]


def make_runner(
    model: PreTrainedModel, make_replay: Callable | None = PlainReplay, num_blocks: int = NUM_BLOCKS
) -> ModelRunner:
    register()
    model.config._attn_implementation = NAME
    layers = tuple(layer.shape for layer in attention_layers(model))
    backend = TorchAttention(layers, num_blocks + 1, BLOCK_SIZE, model.dtype)
    if make_replay is None:
        return ModelRunner(model, backend)
    run = lambda token_ids, positions: compute_logits(model, backend, token_ids, positions)  # noqa: E731
    steps = DecodeSteps(run, backend, num_blocks, BLOCK_SIZE, MAX_SEQUENCES, "cpu", make_replay)
    return ModelRunner(model, backend, steps)


def fill_caches(runners: list[ModelRunner]) -> None:
    """With the same random numbers, but for the scratch block: what lies there must not matter."""
    generator = torch.Generator().manual_seed(1)
    for caches in zip(*(runner._backend.keys + runner._backend.values for runner in runners), strict=True):
        numbers = torch.randn(caches[0].shape, generator=generator)
        for cache in caches:
            cache.copy_(numbers)
            cache[:, NUM_BLOCKS] = torch.randn(cache[:, NUM_BLOCKS].shape)


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gpt_oss"])  # windows, soft-capping, sinks
def test_logits_are_those_of_any_other_step(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batchpaged.attention.static_decode.MAX_BATCH_SLOTS", 100)  # several chunks
    runners = [make_runner(tiny_model(name), replay) for replay in (None, PlainReplay)]
    fill_caches(runners)
    for plan in PLANS:
        rows = list(range(plan.num_tokens))
        expected, found = (runner.logits(plan, rows) for runner in runners)
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=2e-5)


class NoWaiting(TorchDispatchMode):
    """Fails where a number is asked of a tensor: on a GPU everything before it would have to end first."""

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        assert function not in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)
        return function(*arguments, **(keywords or {}))


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "qwen3"])
@pytest.mark.parametrize("make_replay", [None, PlainReplay], ids=["any step", "static"])
def test_a_step_is_started_without_waiting_for_the_device(name: str, make_replay: Callable | None) -> None:
    model = tiny_model(name)
    runner = make_runner(model, make_replay)
    request = SampleRequest(SamplingParams(), 0, 9, None)
    prefill = StepPlan((5,) * 9, tuple(range(9)), tuple(range(9)), (SequenceStep(0, 9, 9, (0, 1), request),), ())
    decode = StepPlan((None,), (9,), (9,), (SequenceStep(0, 1, 10, (0, 1), request),), (), (PendingToken(0, 0),))
    with NoWaiting():
        results = [runner.start(plan) for plan in (prefill, decode)]
    assert all(list(result().token_ids) == [0] for result in results)


def engine_of(runner: ModelRunner, steps_ahead: int, num_blocks: int = NUM_BLOCKS) -> Engine:
    limits = Limits(num_blocks, BLOCK_SIZE, 24, MAX_SEQUENCES, steps_ahead=steps_ahead)
    return Engine(runner, limits.engine_limits(), StopCheck(tiny_tokenizer(), frozenset({7})), b"tests")


@pytest.mark.parametrize("steps_ahead", [0, 1])
def test_tokens_are_those_of_the_engine_without(steps_ahead: int) -> None:
    rng = random.Random(3)
    prompts = [[1, *range(10, 30), *(rng.randrange(5, 200) for _ in range(rng.randint(1, 9)))] for _ in range(20)]
    params = SamplingParams(max_tokens=12)
    expected = completions(build_engine(tiny_model(), Limits(block_size=BLOCK_SIZE), frozenset({7})), prompts, params)
    replays = CountedReplays()
    outputs = completions(engine_of(make_runner(tiny_model(), replays), steps_ahead), prompts, params)
    assert [c.token_ids for c in outputs] == [c.token_ids for c in expected]
    assert replays.num_made < replays.num_calls // 2, "buffers are not used again"


class CountedReplays:
    num_made = num_calls = 0

    def __call__(self, function: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        self.num_made += 1

        def replay() -> torch.Tensor:
            self.num_calls += 1
            return function()

        return replay


def test_buffers_stay_where_they_are() -> None:
    """What a captured graph would read and write: the same tensors in every step of one shape."""
    runner = make_runner(tiny_model())
    backend, seen = runner._backend, []
    for lengths in ([9, 3], [10, 4], [5], [15, 5]):
        runner.logits(decode_plan(lengths), list(range(len(lengths))))
        seen.append((backend._slots.data_ptr(), [batch.blocks.data_ptr() for batch in backend._batches]))
    assert seen[0] == seen[1] == seen[3] != seen[2]
    assert set(backend._static) == {StaticShape(2, 2), StaticShape(1, 1)}


def test_the_replay_used_longest_ago_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_steps, "MAX_REPLAYS", 2)
    replays = CountedReplays()
    runner = make_runner(tiny_model(), replays)
    for lengths, num_made in (([1], 1), ([9], 2), ([1], 2), ([17], 3), ([1], 3), ([9], 4)):
        runner.logits(decode_plan(lengths), [0])
        assert replays.num_made == num_made


def test_steps_that_prefill_are_run_as_before() -> None:
    steps = make_runner(tiny_model())._decode_steps
    assert steps.takes(decode_plan([4] * 12))
    assert not steps.takes(decode_plan([4] * 13))
    request = SampleRequest(SamplingParams(), 0, 2, None)
    assert not steps.takes(StepPlan((1, 2), (0, 1), (0, 1), (SequenceStep(0, 2, 2, (0,), request),), ()))
    assert not steps.takes(StepPlan((1,), (0,), (0,), (SequenceStep(0, 1, 1, (0,), None),), ()))  # the last of a chunk


class FakeGraph:
    def replay(self) -> None:
        events.append("replay")


events: list[str] = []


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> CudaGraphs:
    @contextmanager
    def graph(graph, pool, capture_error_mode):
        events.append(f"capture into {pool}")
        yield

    events.clear()
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    return CudaGraphs()


def test_a_graph_is_captured_once_the_function_has_run_often_enough(graphs: CudaGraphs) -> None:
    output = torch.zeros(1)
    replay = graphs(lambda: events.append("run") or output)
    assert all(replay() is output for _ in range(RUNS_BEFORE_CAPTURE + 2))
    assert events == ["run"] * RUNS_BEFORE_CAPTURE + ["capture into pool", "run", "replay", "replay"]


def test_a_model_that_cannot_be_captured_runs_plainly(graphs: CudaGraphs, caplog: pytest.LogCaptureFixture) -> None:
    def function() -> torch.Tensor:
        if events and events[-1].startswith("capture"):
            events.append("failed")
            raise RuntimeError("operation not permitted when stream is capturing\nand more")
        events.append("run")
        return torch.zeros(1)

    first, second = graphs(function), graphs(function)
    for replay in (*[first] * RUNS_BEFORE_CAPTURE, *[second] * RUNS_BEFORE_CAPTURE, first, second, first):
        replay()
    assert events == ["run"] * 2 * RUNS_BEFORE_CAPTURE + ["capture into pool", "failed", "run", "run", "run"]
    assert caplog.messages == ["decode steps run without CUDA graphs: operation not permitted when stream is capturing"]
