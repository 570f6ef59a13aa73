"""Storing keys and values in their slots, in every format of the cache."""

import pytest
import torch
from kernel_tensors import DEVICE, DTYPES, far_apart, random, unwritten

from batchpaged.kernels.triton.store_kv import reference
from batchpaged.kernels.triton.store_kv.launch import store_kv

FORMATS = (torch.float32, torch.float16, torch.int8, torch.float8_e4m3fn)


def cache(blocks: int, block_size: int, heads: int, dim: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """Values and, for 8 bits, scales."""
    tensors = [unwritten(blocks, block_size, heads, dim, dtype=dtype)]
    return tensors + ([unwritten(blocks, block_size, heads)] if dtype.itemsize == 1 else [])


def stored_by(function, key, value, slots, shapes, dtype) -> list[torch.Tensor]:
    keys, values = (cache(*shape, dtype) for shape in shapes)
    function(key, value, keys[0], values[0], slots, *keys[1:], *values[1:])
    return [tensor.float() for tensor in keys + values]


@pytest.mark.parametrize("cache_dtype", FORMATS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("tokens", "heads", "key_dim", "value_dim", "block_size"),
    [(1, 1, 64, 64, 8), (0, 2, 64, 64, 16), (5, 3, 80, 96, 16), (7, 5, 256, 128, 128), (3, 33, 72, 64, 32)],
)
def test_equals_the_reference(tokens, heads, key_dim, value_dim, block_size, dtype, cache_dtype) -> None:
    key = random(tokens, heads, key_dim, dtype=dtype, scale=5)
    value = random(heads, tokens, value_dim, dtype=dtype).transpose(0, 1)  # as models give it
    slots = torch.randperm(4 * block_size, generator=torch.Generator().manual_seed(tokens))[:tokens].to(DEVICE)
    shapes = (4, block_size, heads, key_dim), (4, block_size, heads, value_dim)
    found = stored_by(store_kv, key, value, slots, shapes, cache_dtype)
    expected = stored_by(reference.store_kv, key, value, slots, shapes, cache_dtype)
    for result, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(result, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("cache_dtype", FORMATS)
def test_what_is_not_finite_is_stored_as_zero(cache_dtype) -> None:
    key = torch.full((1, 2, 64), 2.0, device=DEVICE)
    key[0, 0, :4] = torch.tensor([torch.nan, torch.inf, -torch.inf, 0], device=DEVICE)
    keys = cache(1, 8, 2, 64, cache_dtype)
    values = cache(1, 8, 2, 64, cache_dtype)
    store_kv(key, key, keys[0], values[0], torch.tensor([3], device=DEVICE), *keys[1:], *values[1:])
    number = keys[0].float() if len(keys) == 1 else keys[0].float() * keys[1][..., None]
    torch.testing.assert_close(number[0, 3, 0], torch.cat([torch.zeros(4), torch.full((60,), 2.0)]).to(DEVICE))


@pytest.mark.parametrize("cache_dtype", FORMATS[2:])
def test_small_numbers_keep_their_digits_and_zeros_have_a_scale(cache_dtype) -> None:
    key, slots = random(3, 2, 64, scale=1e-8), torch.tensor([3, 1, 6], device=DEVICE)
    key[1] = 0
    shapes = (1, 8, 2, 64), (1, 8, 2, 64)
    found, expected = (stored_by(f, key, key, slots, shapes, cache_dtype) for f in (store_kv, reference.store_kv))
    for result, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(result, wanted, rtol=0, atol=0, equal_nan=True)


def test_tokens_without_a_slot_are_left_out() -> None:
    key = random(3, 2, 64)
    keys, values = cache(2, 8, 2, 64, torch.float32), cache(2, 8, 2, 64, torch.float32)
    store_kv(key, key, keys[0], values[0], torch.tensor([-1, 9, -1], device=DEVICE))
    assert (~keys[0].isnan()).sum() == 2 * 64
    assert torch.equal(keys[0][1, 1], key[1])


def test_blocks_may_lie_in_any_order_of_memory() -> None:
    key = random(3, 2, 64)
    by_head = unwritten(2, 2, 8, 64)  # [num_blocks, heads, block_size, dim]
    values = cache(2, 8, 2, 64, torch.float32)
    store_kv(key, key, by_head.transpose(1, 2), values[0], torch.tensor([2, 9, 15], device=DEVICE))
    assert torch.equal(by_head[1, :, 7], key[2]) and torch.equal(by_head[0, :, 2], key[0])


def test_slots_far_beyond_32_bits_of_elements() -> None:
    """A cache of more than 2**31 numbers, and tokens as far apart; the system hands out only the pages that are touched."""
    key, far = random(3, 2, 64, dtype=torch.float16), torch.empty((1 << 20) + 1, 16, 2, 64, dtype=torch.float16, device=DEVICE)
    apart = far_apart(key)
    store_kv(apart, apart, far, far, torch.tensor([5, 1 << 24, (1 << 24) + 15], device=DEVICE))
    assert torch.equal(far[-1, 0], key[1]) and torch.equal(far[-1, -1], key[2])


def test_refuses_what_it_cannot_take() -> None:
    key, slots = random(3, 2, 64), torch.arange(3, device=DEVICE)
    good = unwritten(2, 8, 2, 64)
    with pytest.raises(ValueError, match="scales"):
        store_kv(key, key, good.to(torch.int8), good.to(torch.int8), slots)
    with pytest.raises(ValueError, match="heads"):
        store_kv(key, key, unwritten(2, 8, 3, 64), good, slots)
    with pytest.raises(ValueError, match="slots"):
        store_kv(key, key, good, good, slots[:2])
