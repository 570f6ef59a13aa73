"""Rotation of queries and keys, and their store."""

import pytest
import torch
from kernel_tensors import DEVICE, DTYPES, assert_close, far_apart, random, unwritten

from batchpaged.kernels.triton.rope_store import reference
from batchpaged.kernels.triton.rope_store.launch import Angles, rope_store
from batchpaged.kernels.triton.rotate import reference as rotate_reference
from batchpaged.kernels.triton.rotate.launch import rotate

FORMATS = (torch.float32, torch.float16, torch.int8, torch.float8_e4m3fn)


def angles(tokens: int, rotary_dim: int, is_interleaved: bool) -> Angles:
    half = random(tokens, rotary_dim // 2, scale=3)
    whole = half.repeat_interleave(2, dim=-1) if is_interleaved else torch.cat([half, half], dim=-1)
    return Angles(whole.cos(), whole.sin(), is_interleaved)


def caches(block_size: int, heads: int, dim: int, dtype: torch.dtype) -> list[torch.Tensor]:
    tensors = [unwritten(3, block_size, heads, dim, dtype=dtype)]
    return tensors + ([unwritten(3, block_size, heads)] if dtype.itemsize == 1 else [])


@pytest.mark.parametrize("cache_dtype", FORMATS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("tokens", "heads", "kv_heads", "dim", "value_dim", "rotary_dim", "block_size", "is_interleaved"),
    [
        (1, 2, 1, 64, 64, 64, 8, False),
        (0, 2, 1, 64, 64, 64, 8, False),
        (5, 9, 3, 80, 80, 32, 16, False),
        (4, 33, 3, 96, 64, 96, 128, True),
        (3, 2, 2, 256, 256, 64, 32, True),
        (2, 9, 9, 256, 256, 256, 16, False),  # two programs for the queries of a token, two for its keys
    ],
)
def test_equals_the_reference(
    tokens, heads, kv_heads, dim, value_dim, rotary_dim, block_size, is_interleaved, dtype, cache_dtype
) -> None:
    query = random(heads, tokens, dim, dtype=dtype).transpose(0, 1)  # as models give them
    key = random(kv_heads, tokens, dim, dtype=dtype).transpose(0, 1)
    value = random(tokens, kv_heads, value_dim, dtype=dtype)
    turns = angles(tokens, rotary_dim, is_interleaved)
    slots = torch.arange(2, 2 + 3 * tokens, 3, device=DEVICE)
    slots[:1] = -1  # the first token is not stored
    slots = slots.flip(0)
    kept, found = [], []
    for results, function, turn in (
        (found, rope_store, (turns,)),
        (kept, reference.rope_store, (turns.cosine, turns.sine, turns.is_interleaved)),
    ):
        keys, values = caches(block_size, kv_heads, dim, cache_dtype), caches(block_size, kv_heads, value_dim, cache_dtype)
        rotated = function(query, key, value, *turn, keys[0], values[0], slots, *keys[1:], *values[1:])
        results += [rotated, _numbers(*keys), _numbers(*values)]
    steps = {torch.int8: 0.02, torch.float8_e4m3fn: 0.13}  # a number between two of them may go to either
    tolerance = 2e-3 if torch.float16 in (dtype, cache_dtype) else 2e-6
    for name, result, expected in zip(("query", "keys", "values"), found, kept, strict=True):
        assert_close(name, result, expected, max(tolerance, steps.get(cache_dtype, 0)) if name == "keys" else tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("tokens", "heads", "kv_heads", "dim", "rotary_dim", "is_interleaved"),
    [(1, 2, 1, 64, 64, False), (0, 2, 1, 64, 64, False), (5, 9, 3, 80, 32, False), (4, 33, 3, 96, 96, True), (1, 9, 9, 256, 256, False)],
)
def test_rotation_alone_equals_the_reference(tokens, heads, kv_heads, dim, rotary_dim, is_interleaved, dtype) -> None:
    query = random(heads, tokens, dim, dtype=dtype).transpose(0, 1)
    key = random(tokens, kv_heads, dim, dtype=dtype)
    turns = angles(tokens, rotary_dim, is_interleaved)
    expected = rotate_reference.rotate(query, key, turns.cosine, turns.sine, is_interleaved)
    for name, result, right in zip(("query", "key"), rotate(query, key, turns), expected, strict=True):
        assert_close(name, result, right, 2e-3 if dtype is torch.float16 else 2e-6)


def test_rotation_refuses_keys_of_another_size() -> None:
    with pytest.raises(ValueError, match="for queries"):
        rotate(random(2, 4, 64), random(2, 4, 32), angles(2, 64, False))


def _numbers(stored: torch.Tensor, scales: torch.Tensor | None = None) -> torch.Tensor:
    return stored.float() if scales is None else stored.float() * scales[..., None]


def test_rotates_as_transformers_does() -> None:
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    query, key, turns = random(3, 4, 64), random(3, 2, 64), angles(3, 64, False)
    keys, values = caches(8, 2, 64, torch.float32), caches(8, 2, 64, torch.float32)
    found = rope_store(query, key, key, turns, keys[0], values[0], torch.arange(3, device=DEVICE))
    cosine, sine = turns.cosine[None], turns.sine[None]
    expected = apply_rotary_pos_emb(query.transpose(0, 1)[None], key.transpose(0, 1)[None], cosine, sine)
    assert_close("query", found, expected[0][0].transpose(0, 1), 2e-6)
    assert_close("key", keys[0][0, :3], expected[1][0].transpose(0, 1), 2e-6)


def test_slots_far_beyond_32_bits_of_elements() -> None:
    """A cache of more than 2**31 numbers, and tokens as far apart; the system hands out only the pages that are touched."""
    key, far = random(3, 2, 64, dtype=torch.float16), torch.empty((1 << 20) + 1, 16, 2, 64, dtype=torch.float16, device=DEVICE)
    still, apart = Angles(torch.ones(3, 64, device=DEVICE), torch.zeros(3, 64, device=DEVICE)), far_apart(key)
    turned = rope_store(apart, apart, apart, still, far, far, torch.tensor([5, 1 << 24, (1 << 24) + 15], device=DEVICE))
    assert torch.equal(far[-1, 0], key[1]) and torch.equal(far[-1, -1], key[2])
    assert all(torch.equal(x, key) for x in (turned, *rotate(apart, apart, still)))


def test_refuses_what_it_cannot_take() -> None:
    query, key, slots = random(3, 4, 64), random(3, 2, 64), torch.arange(3, device=DEVICE)
    cache = unwritten(2, 8, 2, 64)
    with pytest.raises(ValueError, match="rotated"):
        rope_store(query, key, key, angles(3, 80, False), cache, cache, slots)
    with pytest.raises(ValueError, match="tokens"):
        rope_store(query, key, key, angles(2, 64, False), cache, cache, slots)
    with pytest.raises(ValueError, match="queries"):
        rope_store(query[:2], key, key, angles(2, 64, False), cache, cache, slots)
