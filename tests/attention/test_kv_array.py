"""Keys and values in 8 bits: what is lost, and that nothing else changes."""

import pytest
import torch
from attention.steps import nested_step, random_step
from hypothesis import given
from hypothesis import strategies as st

from batchpaged.attention.backend import AttentionParams
from batchpaged.attention.kv_array import KvArray, KvDtype
from batchpaged.attention.layer_shape import LayerShape
from batchpaged.attention.reference import TorchAttention
from batchpaged.attention.sharing import NEVER
from batchpaged.engine.step import BlockCopy
from batchpaged.kernels.triton.kv_reference import dequantise, quantise

BLOCK_SIZE = 4
SHAPE = LayerShape(2, 16, 24)
EIGHT_BITS: tuple[KvDtype, ...] = ("int8", "fp8")
# Most that a number loses, over the greatest magnitude of its slot and head: half a step of int8; half of fp8's widest.
LOSS = {"int8": 0.5 / 127, "fp8": 16 / 448}


def array(kv_dtype: KvDtype, dim: int = 16) -> KvArray:
    return KvArray((2, 3, BLOCK_SIZE, dim), torch.float32, kv_dtype, "cpu")


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kv_dtype", EIGHT_BITS)
@pytest.mark.parametrize("magnitude", [1e-20, 0.01, 1.0, 1e6, 3e38])
def test_numbers_lose_less_than_a_step(kv_dtype: KvDtype, magnitude: float) -> None:
    cache, new = array(kv_dtype), random(2, 5, 16) / 4 * magnitude
    slots = torch.tensor([0, 3, 7, 10, 11])
    cache.store(slots, new)
    found = cache.gather(torch.arange(3), torch.float32).flatten(1, 2)
    greatest = new.abs().amax(-1, keepdim=True)
    assert ((found[:, slots] - new).abs() <= greatest * LOSS[kv_dtype] * 1.001).all()
    assert torch.count_nonzero(found[:, [1, 2, 4, 5, 6, 8, 9]]) == 0


@pytest.mark.parametrize("kv_dtype", EIGHT_BITS)
def test_the_greatest_of_a_head_and_zeros_lose_nothing(kv_dtype: KvDtype) -> None:
    cache, new = array(kv_dtype), random(2, 2, 16)
    new[:, 1] = 0
    new[:, 0, 3] = -7.0
    cache.store(torch.tensor([2, 5]), new)
    found = cache.gather(torch.arange(3), torch.float32).flatten(1, 2)
    torch.testing.assert_close(found[:, 2, 3], torch.full((2,), -7.0), rtol=1e-6, atol=0)
    assert torch.count_nonzero(found[:, 5]) == 0


@pytest.mark.parametrize("kv_dtype", ["auto", *EIGHT_BITS])
def test_what_is_not_finite_is_stored_as_zero(kv_dtype: KvDtype) -> None:
    cache, new = array(kv_dtype), torch.full((2, 1, 16), 2.0)
    new[0, 0, :3] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    cache.store(torch.tensor([4]), new)
    found = cache.gather(torch.tensor([1]), torch.float32)[0, 0, 0]
    torch.testing.assert_close(found, torch.tensor([0.0] * 3 + [2.0] * 13))


@given(st.integers(0, 99), st.sampled_from([torch.int8, torch.float8_e4m3fn]))
def test_what_was_read_is_stored_as_it_was(seed: int, dtype: torch.dtype) -> None:
    """A block that is computed again from its own numbers does not drift."""
    stored, scale = quantise(random(3, 16, seed=seed), dtype)
    again, scale_again = quantise(dequantise(stored, scale), dtype)
    torch.testing.assert_close(scale_again, scale, rtol=1e-6, atol=0)
    assert torch.equal(again.view(torch.uint8), stored.view(torch.uint8))


def attend(kv_dtype: KvDtype, make, seed: int, **options) -> torch.Tensor:
    """Two steps: the first gives every slot something."""
    plan, num_blocks = make(seed, BLOCK_SIZE)
    backend = TorchAttention((SHAPE,), num_blocks, BLOCK_SIZE, torch.float32, kv_dtype=kv_dtype, **options)
    num_slots = num_blocks * BLOCK_SIZE
    backend._keys[0].store(torch.arange(num_slots), random(2, num_slots, 16))
    backend._values[0].store(torch.arange(num_slots), random(2, num_slots, 24, seed=1))
    backend.begin(plan)
    shapes = (4, 16), (2, 16), (2, 24)
    query, key, value = (random(heads, plan.num_tokens, dim, seed=2) for heads, dim in shapes)
    return backend.attend(0, query, key, value, AttentionParams(0.25, None, None, None))


@pytest.mark.parametrize("make", [random_step, nested_step])
@pytest.mark.parametrize(("kv_dtype", "most"), [("int8", 0.02), ("fp8", 0.1)])
def test_attention_over_8_bits_is_near_to_that_over_all(kv_dtype: KvDtype, most: float, make) -> None:
    for seed in range(4):
        error = (attend(kv_dtype, make, seed) - attend("auto", make, seed)).abs().max().item()
        assert 0 < error < most


@pytest.mark.parametrize("kv_dtype", EIGHT_BITS)
def test_sharing_changes_nothing(kv_dtype: KvDtype) -> None:
    torch.testing.assert_close(attend(kv_dtype, nested_step, 0), attend(kv_dtype, nested_step, 0, rule=NEVER))


@pytest.mark.parametrize("kv_dtype", EIGHT_BITS)
def test_copies_take_the_scales_along(kv_dtype: KvDtype) -> None:
    backend = TorchAttention((SHAPE,), 3, BLOCK_SIZE, torch.float32, kv_dtype=kv_dtype)
    backend._keys[0].store(torch.arange(4), random(2, 4, 16) * torch.tensor([1.0, 9.0, 100.0, 0.1])[:, None])
    backend.copy((BlockCopy(0, 2, 3),))
    found = backend._keys[0].gather(torch.arange(3), torch.float32)
    assert torch.equal(found[:, 2, :3], found[:, 0, :3]) and torch.count_nonzero(found[:, 2, 3]) == 0
