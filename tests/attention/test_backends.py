"""Every backend against attention computed one query at a time, straight from its definition."""

from collections.abc import Callable

import pytest
import torch
from attention.definition import naive
from attention.steps import MIXED, nested_step, random_step, step_plan

from batchpaged.attention.backend import AttentionParams
from batchpaged.attention.cpu import CpuAttention
from batchpaged.attention.layer_shape import LayerShape
from batchpaged.attention.reference import TorchAttention
from batchpaged.attention.sharing import ALWAYS, NEVER
from batchpaged.engine.step import BlockCopy, SequenceStep, StepPlan

BLOCK_SIZE = 4
PLAIN = AttentionParams(0.3, None, None, None)


BACKENDS = {
    "torch": (TorchAttention, ALWAYS),
    "cpu": (CpuAttention, ALWAYS),
    "cpu mixed": (CpuAttention, MIXED),
    "cpu alone": (CpuAttention, NEVER),
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each test runs with every backend; those of short types with the one that has them."""
    has_short_types = "dtype" in metafunc.fixturenames
    metafunc.parametrize("backend_name", ["torch"] if has_short_types else list(BACKENDS), indirect=True)


@pytest.fixture(autouse=True)
def backend_name(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Case, "backend_and_rule", BACKENDS[request.param])


def make_backend(shapes: tuple[LayerShape, ...], num_blocks: int, dtype: torch.dtype) -> TorchAttention | CpuAttention:
    backend, rule = Case.backend_and_rule
    if backend is TorchAttention:
        return TorchAttention(shapes, num_blocks, BLOCK_SIZE, dtype, rule=rule)
    return CpuAttention(shapes, num_blocks, BLOCK_SIZE, rule)


def cached_keys(backend: TorchAttention | CpuAttention, layer: int = 0) -> torch.Tensor:
    """[G, num_blocks, block_size, head_dim], whatever the backend's own layout."""
    keys = backend.keys[layer]
    return keys.transpose(2, 3) if isinstance(backend, CpuAttention) else keys


class Case:
    """A step with random queries, keys and values, and a backend whose every slot holds something."""

    backend_and_rule = (TorchAttention, ALWAYS)

    def __init__(
        self,
        seed: int,
        make: Callable[[int, int], tuple[StepPlan, int]] = random_step,
        dtype: torch.dtype = torch.float32,
        shape: LayerShape = LayerShape(2, 8, 6),
        repeats: int = 3,  # sizes that test_equals_the_definition has too: kernels are compiled for each
    ) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.plan, num_blocks = make(seed, BLOCK_SIZE)
        self.backend = make_backend((shape,), num_blocks, dtype)
        for cache in (self.backend.keys[0], self.backend.values[0]):
            cache.copy_(self.random(*cache.shape))
        num_tokens = self.plan.num_tokens
        self.query = self.random(shape.num_kv_heads * repeats, num_tokens, shape.head_dim).to(dtype)
        self.key = self.random(shape.num_kv_heads, num_tokens, shape.head_dim).to(dtype)
        self.value = self.random(shape.num_kv_heads, num_tokens, shape.value_dim).to(dtype)

    def random(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.generator)

    def attend(self, params: AttentionParams = PLAIN) -> torch.Tensor:
        self.backend.begin(self.plan)
        return self.backend.attend(0, self.query, self.key, self.value, params)

    def expected(self, params: AttentionParams = PLAIN) -> torch.Tensor:
        """To be asked after `attend`, which stores the step's own keys and values."""
        keys, values = cached_keys(self.backend).float(), self.backend.values[0].float()
        return naive(self.plan, keys, values, self.query.float(), params)


VARIANTS = {
    "plain": {},
    "window": {"sliding_window": 5},
    "window shorter than a block": {"sliding_window": 2},
    "window of one token": {"sliding_window": 1},
    "softcap": {"softcap": 3.0},
    "sinks": {"sinks": True},
    "all": {"sliding_window": 9, "softcap": 3.0, "sinks": True},
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("make", [random_step, nested_step])
@pytest.mark.parametrize("seed", range(12))
def test_equals_the_definition(seed: int, make, variant: str) -> None:
    shape, repeats = LayerShape(1 + seed % 3, 8, (8, 6)[seed % 2]), (1, 3)[seed % 2]
    case = Case(seed, make, shape=shape, repeats=repeats)
    options = dict(VARIANTS[variant])
    sinks = case.random(shape.num_kv_heads * repeats) if options.pop("sinks", False) else None
    params = AttentionParams(0.3, options.get("sliding_window"), options.get("softcap"), sinks)
    torch.testing.assert_close(case.attend(params), case.expected(params), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("make", [random_step, nested_step])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_short_types_lose_no_more_than_their_inputs_do(dtype: torch.dtype, make) -> None:
    """Partial results are merged in float32: their log-sum-exps have no digits to spare."""
    params = AttentionParams(2.0, None, None, None)
    for seed in range(8):
        case = Case(seed, make, dtype)
        output = case.attend(params)
        assert output.dtype == dtype
        error = (output.float() - case.expected(params)).abs().max().item()
        assert error < 12 * torch.finfo(dtype).eps


@pytest.mark.parametrize("make", [random_step, nested_step])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_of_all_partial_results_sum_to_one(dtype: torch.dtype, make) -> None:
    """To half a digit of a short type: scores and their sums are not rounded to it."""
    for seed in range(8):
        case = Case(seed, make, dtype)
        case.value.fill_(1)
        case.backend.values[0].fill_(1)
        output = case.attend(AttentionParams(2.0, None, None, None))
        assert (output.float() - 1).abs().max().item() <= 0.5 * torch.finfo(dtype).eps


def test_what_overflowed_in_one_row_does_not_reach_the_others() -> None:
    """Its keys and values lie in slots that others read with weight zero, and zero times infinity is no zero."""
    damage = {"nan": float("nan"), "inf": float("inf")}
    for name, bad in damage.items():
        plan = step_plan([SequenceStep(0, 2, 2, (0,), None), SequenceStep(1, 5, 9, (3, 2, 1), None)], BLOCK_SIZE)
        case = Case(0, lambda seed, size: (plan, 4))
        case.key[:, :2], case.value[:, :2] = bad, bad
        assert case.attend()[2:].isfinite().all(), name
        case.plan = step_plan([SequenceStep(2, 1, 1, (0,), None)], BLOCK_SIZE)  # another row in the same block
        case.query, case.key, case.value = case.random(6, 1, 8), case.random(2, 1, 8), case.random(2, 1, 6)
        torch.testing.assert_close(case.attend(), case.value.transpose(0, 1).repeat_interleave(3, 1), msg=name)


def test_the_result_is_contiguous() -> None:
    """Some models take a view of it."""
    assert Case(0, nested_step).attend().is_contiguous()


def test_queries_need_not_be_contiguous() -> None:
    """Models hand over transposed views."""
    case = Case(1, nested_step)
    expected = case.attend()
    case.query = case.query.transpose(0, 1).contiguous().transpose(0, 1)
    case.key = case.key.transpose(1, 2).contiguous().transpose(1, 2)
    torch.testing.assert_close(case.attend(), expected)


def test_keys_and_values_are_stored_in_their_slots() -> None:
    case = Case(3)
    case.attend()
    for row, slot in enumerate(case.plan.slots):
        assert torch.equal(cached_keys(case.backend)[:, slot // BLOCK_SIZE, slot % BLOCK_SIZE], case.key[:, row])
        assert torch.equal(case.backend.values[0][:, slot // BLOCK_SIZE, slot % BLOCK_SIZE], case.value[:, row])


def test_layers_keep_their_keys_apart_and_may_differ_in_shape() -> None:
    shapes = (LayerShape(2, 8, 8), LayerShape(1, 4, 6))
    backend = make_backend(shapes, 3, torch.float32)
    backend.begin(step_plan([SequenceStep(0, 5, 5, (2, 0), None)], BLOCK_SIZE))
    for layer, shape in enumerate(shapes):
        key = torch.full((shape.num_kv_heads, 5, shape.head_dim), 1.0 + layer)
        value = torch.full((shape.num_kv_heads, 5, shape.value_dim), 10.0 + layer)
        output = backend.attend(layer, torch.ones(2, 5, shape.head_dim), key, value, PLAIN)
        torch.testing.assert_close(output, torch.full((5, 2, shape.value_dim), 10.0 + layer))
    assert [cache.unique().tolist() for cache in backend.keys] == [[0.0, 1.0], [0.0, 2.0]]


def test_copies_read_all_sources_before_they_write() -> None:
    backend = Case(0, lambda seed, size: (random_step(seed, size)[0], 100)).backend
    keys, values = cached_keys(backend).clone(), backend.values[0].clone()
    backend.copy((BlockCopy(0, 1, 3), BlockCopy(1, 2, 2), BlockCopy(3, 3, 2)))
    for cache, before in ((cached_keys(backend), keys), (backend.values[0], values)):
        assert torch.equal(cache[:, 1, :3], before[:, 0, :3])
        assert torch.equal(cache[:, 2, :2], before[:, 1, :2])
        assert torch.equal(cache[:, 1, 3:], before[:, 1, 3:])
        assert torch.equal(cache[:, 3:], before[:, 3:])


def test_no_copies_change_nothing() -> None:
    backend = Case(0).backend
    before = backend.keys[0].clone()
    backend.copy(())
    assert torch.equal(backend.keys[0], before)
