"""The Triton backend against attention computed one query at a time, straight from its definition. In the interpreter."""

from dataclasses import replace

import pytest
import torch
from attention.definition import naive
from attention.steps import prefix_step, random_step, step_plan

triton = pytest.importorskip("triton")

from batchpaged.attention.backend import AttentionParams  # noqa: E402
from batchpaged.attention.kv_array import KvDtype  # noqa: E402
from batchpaged.attention.layer_shape import LayerShape  # noqa: E402
from batchpaged.attention.sharing import ALWAYS, NEVER, SharingRule  # noqa: E402
from batchpaged.attention.triton import TritonAttention  # noqa: E402
from batchpaged.engine.step import BlockCopy, SequenceStep, StepPlan  # noqa: E402
from batchpaged.kernels.triton.kv_reference import dequantise  # noqa: E402
from batchpaged.kernels.triton.launching import record  # noqa: E402
from batchpaged.kernels.triton.paged_attention.arguments import PagedCache  # noqa: E402
from batchpaged.kernels.triton.store_kv.launch import store_kv  # noqa: E402
from batchpaged.kernels.triton.paged_attention.tiling import BATCH_INVARIANT, Tiling  # noqa: E402
from batchpaged.kernels.triton.targets import TARGETS  # noqa: E402

DEVICE = "cpu" if triton.knobs.runtime.interpret else "cuda"
BLOCK_SIZE = 8
SMALL = Tiling(tile_rows=(16, 64), split_keys=32)
PLAIN = AttentionParams(0.3, None, None, None)
SHAPE = LayerShape(2, 24, 16)
REPEATS = 3
# Three levels, decodes and prefills; a sequence that shares nothing.
TRIE = (((0, 1), 1, 1, 3), ((0, 1), 1, 2, 0), ((0,), 1, 1, 1), ((0, 2), 1, 1, 4), ((0, 2), 2, 5, 1), ((), 5, 1, 2))
VARIANTS = {
    "plain": {},
    "window": {"sliding_window": 13},
    "window of one token": {"sliding_window": 1},
    "softcap": {"softcap": 3.0},
    "sinks": {"sinks": True},
    "all": {"sliding_window": 30, "softcap": 3.0, "sinks": True},
}


class Case:
    """A step with random queries, keys and values; slots that no context uses hold NaN."""

    def __init__(
        self,
        step: StepPlan | None = None,
        dtype: torch.dtype = torch.float32,
        rule: SharingRule = ALWAYS,
        tiling: Tiling = SMALL,
        kv_dtype: KvDtype = "auto",
    ) -> None:
        trie, num_blocks = prefix_step(TRIE, BLOCK_SIZE, 4)
        self.step, self.dtype = step or trie, dtype
        self.generator = torch.Generator().manual_seed(0)
        self.backend = TritonAttention((SHAPE,), num_blocks, BLOCK_SIZE, dtype, DEVICE, rule, tiling, kv_dtype)
        cache = self.backend.caches[0]
        if kv_dtype == "auto":
            cache.keys.fill_(torch.nan)
            cache.values.fill_(torch.nan)
        self._fill_contexts(trie)
        self.query = self.random(SHAPE.num_kv_heads * REPEATS, self.step.num_tokens, SHAPE.head_dim)
        self.key = self.random(SHAPE.num_kv_heads, self.step.num_tokens, SHAPE.head_dim)
        self.value = self.random(SHAPE.num_kv_heads, self.step.num_tokens, SHAPE.value_dim)

    def random(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.generator).to(DEVICE, self.dtype)

    def _fill_contexts(self, step: StepPlan) -> None:
        """As steps before this one would have."""
        places = {(s.block_table[p // BLOCK_SIZE], p % BLOCK_SIZE) for s in step.sequences for p in range(s.context_length)}
        slots = sorted(block * BLOCK_SIZE + offset for block, offset in places)
        tokens = (0,) * len(slots)
        sequences = tuple(SequenceStep(i, 1, 1, (slot // BLOCK_SIZE,), None) for i, slot in enumerate(slots))
        key, value = self.random(2, len(slots), SHAPE.head_dim), self.random(2, len(slots), SHAPE.value_dim)
        store(self.backend, StepPlan(tokens, tokens, tuple(slots), sequences, ()), key, value)

    def attend(self, params: AttentionParams = PLAIN) -> torch.Tensor:
        self.backend.begin(self.step)
        return self.backend.attend(0, self.query, self.key, self.value, params)

    def expected(self, params: AttentionParams = PLAIN) -> torch.Tensor:
        """To be asked after `attend`, which stores the step's own keys and values."""
        keys, values = numbers(self.backend.caches[0])
        params = replace(params, sinks=None if params.sinks is None else params.sinks.cpu())
        return naive(self.step, keys, values, self.query.float().cpu(), params)


def store(backend: TritonAttention, plan: StepPlan, key: torch.Tensor, value: torch.Tensor) -> None:
    cache, slots = backend.caches[0], torch.tensor(plan.slots, device=DEVICE)
    if cache.key_scales is None:  # as they are; the interpreter takes long for hundreds of tokens
        for numbers, new in ((cache.keys, key), (cache.values, value)):
            numbers.flatten(0, 1)[slots] = new.transpose(0, 1)
        return
    store_kv(key.transpose(0, 1), value.transpose(0, 1), cache.keys, cache.values, slots, cache.key_scales, cache.value_scales)


def numbers(cache: PagedCache) -> list[torch.Tensor]:
    """Keys and values as [num_kv_heads, num_blocks, block_size, dim] in float32."""
    pairs = (cache.keys, cache.key_scales), (cache.values, cache.value_scales)
    return [(x.float() if s is None else dequantise(x, s)).permute(2, 0, 1, 3).cpu() for x, s in pairs]


def params_of(case: Case, variant: str) -> AttentionParams:
    options = dict(VARIANTS[variant])
    sinks = case.random(SHAPE.num_kv_heads * REPEATS) if options.pop("sinks", False) else None
    return AttentionParams(0.3, options.get("sliding_window"), options.get("softcap"), sinks)


@pytest.mark.parametrize("rule", [ALWAYS, NEVER], ids=["shared", "alone"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_equals_the_definition(variant: str, rule: SharingRule) -> None:
    case = Case(rule=rule)
    params = params_of(case, variant)
    torch.testing.assert_close(case.attend(params).cpu(), case.expected(params), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("kv_dtype", ["auto", "int8", "fp8"])
def test_short_types_lose_no_more_than_their_inputs_do(kv_dtype: KvDtype) -> None:
    case = Case(dtype=torch.float16, kv_dtype=kv_dtype)
    output = case.attend()
    assert output.dtype == torch.float16
    assert (output.float().cpu() - case.expected()).abs().max().item() < 12 * torch.finfo(torch.float16).eps


@pytest.mark.parametrize("rule", [ALWAYS, NEVER], ids=["shared", "alone"])
def test_default_sizes_equal_the_definition(rule: SharingRule) -> None:
    case = Case(dtype=torch.float16, rule=rule, tiling=Tiling())
    torch.testing.assert_close(case.attend().float().cpu(), case.expected(), atol=4e-3, rtol=4e-3)


def test_what_overflowed_in_one_row_does_not_reach_the_others() -> None:
    """Its keys and values lie in slots that others read with weight zero, and zero times infinity is no zero."""
    for name, bad in {"nan": float("nan"), "inf": float("inf")}.items():
        case = Case(step_plan([SequenceStep(0, 2, 2, (0,), None), SequenceStep(1, 5, 9, (3, 2), None)], BLOCK_SIZE))
        case.key[:, :2], case.value[:, :2] = bad, bad
        assert case.attend()[2:].isfinite().all(), name
        case.step = step_plan([SequenceStep(2, 1, 1, (0,), None)], BLOCK_SIZE)  # another row in the same block
        case.query, case.key, case.value = case.random(6, 1, 24), case.random(2, 1, 24), case.random(2, 1, 16)
        torch.testing.assert_close(case.attend(), case.value.transpose(0, 1).repeat_interleave(REPEATS, 1), msg=name)


def test_queries_need_not_be_contiguous_and_the_result_is() -> None:
    """Models hand over transposed views, and take a view of the result."""
    case = Case()
    expected = case.attend()
    case.query = case.query.transpose(0, 1).contiguous().transpose(0, 1)
    case.key = case.key.transpose(1, 2).contiguous().transpose(1, 2)
    output = case.attend()
    torch.testing.assert_close(output, expected)
    assert output.is_contiguous()


def test_layers_keep_their_keys_apart_and_may_differ_in_shape() -> None:
    shapes = (LayerShape(2, 8, 8), LayerShape(1, 4, 6))
    backend = TritonAttention(shapes, 3, BLOCK_SIZE, torch.float32, DEVICE)
    backend.begin(step_plan([SequenceStep(0, 9, 9, (2, 0), None)], BLOCK_SIZE))
    for layer, shape in enumerate(shapes):
        key = torch.full((shape.num_kv_heads, 9, shape.head_dim), 1.0 + layer, device=DEVICE)
        value = torch.full((shape.num_kv_heads, 9, shape.value_dim), 10.0 + layer, device=DEVICE)
        output = backend.attend(layer, torch.ones(2, 9, shape.head_dim, device=DEVICE), key, value, PLAIN)
        torch.testing.assert_close(output, torch.full_like(output, 10.0 + layer))
    assert [cache.keys.unique().tolist() for cache in backend.caches] == [[0.0, 1.0], [0.0, 2.0]]


@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
def test_copies_read_all_sources_before_they_write(kv_dtype: KvDtype) -> None:
    backend = Case(kv_dtype=kv_dtype).backend
    before = [x.clone() for x in numbers(backend.caches[0])]
    backend.copy((BlockCopy(0, 1, 3), BlockCopy(1, 2, 2), BlockCopy(3, 3, 2)))
    for cache, old in zip(numbers(backend.caches[0]), before, strict=True):
        expected = old.clone()
        expected[:, 1, :3], expected[:, 2, :2] = old[:, 0, :3], old[:, 1, :2]
        torch.testing.assert_close(cache, expected, rtol=0, atol=0, equal_nan=True)


def test_no_copies_change_nothing() -> None:
    backend = Case(kv_dtype="int8").backend
    before = backend.caches[0].keys.clone()
    backend.copy(())
    assert torch.equal(backend.caches[0].keys, before)


@pytest.mark.parametrize("window", [None, 20])
def test_one_way_to_cut_and_one_kernel_give_the_same_bits_in_any_batch(window: int | None) -> None:
    """A token alone, as a decode, and as part of a prompt computed in one piece with others beside it."""
    tiling = replace(BATCH_INVARIANT, split_keys=16, key_alignment=16)
    params = AttentionParams(0.3, window, None, None)
    case = Case(rule=NEVER, tiling=tiling)
    together = case.attend(params)
    row = 0
    for sequence in case.step.sequences:
        row += sequence.query_length
        step = step_plan([replace(sequence, query_length=1)], BLOCK_SIZE)
        case.backend.begin(step)
        last = slice(row - 1, row)
        alone = case.backend.attend(0, case.query[:, last], case.key[:, last], case.value[:, last], params)
        assert torch.equal(alone[0], together[row - 1])


def test_one_loop_of_the_kernel_is_used_where_bits_count() -> None:
    case = Case(rule=NEVER, tiling=BATCH_INVARIANT)
    with record(TARGETS["sm_90"]) as launches:
        case.attend()
    loops = [launch.options["SKIPS_MASK"] for launch in launches if "SKIPS_MASK" in launch.options]
    assert loops == [False]


def test_random_tries_equal_the_definition() -> None:
    step, _ = random_step(5, BLOCK_SIZE, max_blocks=3, num_sequences=5)
    case = Case(step)
    case._fill_contexts(step)
    torch.testing.assert_close(case.attend().cpu(), case.expected(), atol=2e-5, rtol=1e-4)
