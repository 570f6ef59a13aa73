"""Every kernel against its reference in float32, on random input, with outputs that held NaN before."""

import math
from collections.abc import Callable, Iterator

import torch

from batchpaged.attention.backend import AttentionParams
from batchpaged.attention.kv_array import EIGHT_BITS, KvDtype
from batchpaged.attention.layer_shape import LayerShape
from batchpaged.attention.reference import TorchAttention
from batchpaged.attention.triton import TritonAttention
from batchpaged.gpu_check.sizes import Sizes
from batchpaged.gpu_check.steps import BLOCK_SIZE, nested_step
from batchpaged.kernels.triton.copy_blocks import reference as copy_reference
from batchpaged.kernels.triton.copy_blocks.launch import cache_table, copy_blocks
from batchpaged.kernels.triton.gated import reference as gated_reference
from batchpaged.kernels.triton.gated.launch import gated
from batchpaged.kernels.triton.kv_reference import dequantise, quantise
from batchpaged.kernels.triton.linear import reference as linear_reference
from batchpaged.kernels.triton.linear.launch import linear
from batchpaged.kernels.triton.merge_partials import reference as merge_reference
from batchpaged.kernels.triton.merge_partials.launch import merge_partials
from batchpaged.kernels.triton.rms_norm import reference as norm_reference
from batchpaged.kernels.triton.rms_norm.launch import rms_norm
from batchpaged.kernels.triton.rope_store import reference as rope_reference
from batchpaged.kernels.triton.rope_store.launch import Angles, rope_store
from batchpaged.kernels.triton.rotate import reference as rotate_reference
from batchpaged.kernels.triton.rotate.launch import rotate
from batchpaged.kernels.triton.sample import reference as sample_reference
from batchpaged.kernels.triton.sample.launch import SamplingRows, sample
from batchpaged.kernels.triton.store_kv import reference as store_reference
from batchpaged.kernels.triton.store_kv.launch import store_kv

TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 1.5e-2, torch.float16: 3e-3}  # norm of the error over the norm of the reference
FORMATS: tuple[KvDtype, ...] = ("auto", *EIGHT_BITS)
Error = tuple[str, float, float]  # what, error, tolerance


def kernel_errors(sizes: Sizes, device: str) -> Iterator[Error]:
    for check in (_norms, _gates, _linears, _stores, _rotations, _copies, _merges, _samples, _attentions):
        for name, error, tolerance in check(sizes, device):
            yield f"{check.__name__.strip('_')}: {name}", error, tolerance


def _random(device: str, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, device=device).to(dtype)


def _unwritten(like: torch.Tensor) -> torch.Tensor:
    return torch.full_like(like, math.nan)


def _error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """NaN where anything was not written."""
    return float((found.float() - expected.float()).norm() / expected.float().norm().clamp_min(1e-20))


def _norms(sizes: Sizes, device: str) -> Iterator[Error]:
    dtype = sizes.dtype
    for dim in (64, 576, 4096):
        x, residual = (_random(device, 37, dim, dtype=dtype) for _ in range(2))
        weight = _random(device, dim, dtype=dtype)
        found = rms_norm(x, weight, 1e-5, residual)
        expected = norm_reference.rms_norm(x.float(), weight.float(), 1e-5, residual.float())
        yield f"{dim} values", max(_error(a, b) for a, b in zip(found, expected, strict=True)), TOLERANCES[dtype]


def _gates(sizes: Sizes, device: str) -> Iterator[Error]:
    dtype = sizes.dtype
    for dim in (48, 14336):
        gate, up = (_random(device, 9, dim, dtype=dtype) for _ in range(2))
        for activation in ("silu", "gelu_tanh"):
            expected = gated_reference.gated(gate.float(), up.float(), activation)
            yield f"{activation}, {dim} values", _error(gated(gate, up, activation), expected), TOLERANCES[dtype]


def _linears(sizes: Sizes, device: str) -> Iterator[Error]:
    """And a row alone has the very bits that it has beside others."""
    dtype = sizes.dtype
    for depth, columns in sizes.linears:
        x, weight, bias = (_random(device, *shape, dtype=dtype) for shape in ((137, depth), (columns, depth), (columns,)))
        found = linear(x, weight, bias)
        expected = linear_reference.linear(x.float(), weight.float(), bias.float())
        yield f"{depth} to {columns}", _error(found, expected), TOLERANCES[dtype]
        alone = torch.cat([linear(x[i : i + 1], weight, bias) for i in (0, 63, 64, 136)])
        yield f"{depth} to {columns}, alone", float((alone != found[[0, 63, 64, 136]]).sum()), 0.0


def _caches(dtype: torch.dtype, device: str, kv_dtype: KvDtype, dim: int) -> list[torch.Tensor | None]:
    """-> keys, values, and the scales of both."""
    shape = (8, BLOCK_SIZE, 3)
    caches = [torch.zeros(*shape, dim, dtype=EIGHT_BITS.get(kv_dtype, dtype), device=device) for _ in range(2)]
    return caches + [None if kv_dtype == "auto" else torch.zeros(shape, device=device) for _ in range(2)]


def _numbers(caches: list[torch.Tensor | None]) -> torch.Tensor:
    keys, values, key_scales, value_scales = caches
    pairs = ((keys, key_scales), (values, value_scales))
    return torch.cat([(x.float() if scale is None else dequantise(x, scale)).flatten() for x, scale in pairs])


def _slots(device: str, num_tokens: int) -> torch.Tensor:
    return torch.randperm(8 * BLOCK_SIZE, device=device)[:num_tokens]


def _stores(sizes: Sizes, device: str) -> Iterator[Error]:
    dtype = sizes.dtype
    for kv_dtype in FORMATS:
        key, value = (_random(device, 50, 3, 80, dtype=dtype) for _ in range(2))
        slots, found, expected = _slots(device, 50), *(_caches(dtype, device, kv_dtype, 80) for _ in range(2))
        store_kv(key, value, *found[:2], slots, *found[2:])
        store_reference.store_kv(key, value, *expected[:2], slots, *expected[2:])
        yield f"{kv_dtype}", _error(_numbers(found), _numbers(expected)), 1e-3


def _rotations(sizes: Sizes, device: str) -> Iterator[Error]:
    dtype = sizes.dtype
    for is_interleaved in (False, True):
        query = _random(device, 50, 9, 64, dtype=dtype)
        key, value = (_random(device, 50, 3, 64, dtype=dtype) for _ in range(2))
        turns = torch.rand(50, 32, device=device).mul(6)
        turns = turns.repeat_interleave(2, 1) if is_interleaved else turns.repeat(1, 2)
        angles, slots = Angles(turns.cos(), turns.sin(), is_interleaved), _slots(device, 50)
        found, expected = (_caches(dtype, device, "auto", 64) for _ in range(2))
        turned = rope_store(query, key, value, angles, *found[:2], slots)
        right = rope_reference.rope_store(
            query.float(), key.float(), value, angles.cosine, angles.sine, is_interleaved, *expected[:2], slots
        )
        error = max(_error(turned, right), _error(_numbers(found), _numbers(expected)))
        name = "pairs" if is_interleaved else "halves"
        yield f"{name}, stored", error, TOLERANCES[dtype]
        alone = rotate(query, key, angles)
        right = rotate_reference.rotate(query.float(), key.float(), angles.cosine, angles.sine, is_interleaved)
        yield f"{name}, alone", max(map(_error, alone, right)), TOLERANCES[dtype]


def _copies(sizes: Sizes, device: str) -> Iterator[Error]:
    dtype = sizes.dtype
    for is_chained in (False, True):
        found = [_random(device, 9, BLOCK_SIZE, 3, dim, dtype=dtype) for dim in (64, 80)]
        expected = [cache.clone() for cache in found]
        sources, targets = ([0, 1, 2], [1, 2, 3]) if is_chained else ([0, 1, 2], [5, 6, 7])
        copies = [torch.tensor(x, device=device) for x in (sources, targets, [16, 3, 9])]
        copy_blocks(cache_table(found), *copies, is_chained)
        copy_reference.copy_blocks(expected, *copies)
        yield "chained" if is_chained else "apart", max(map(_error, found, expected)), 0.0


def _merges(sizes: Sizes, device: str) -> Iterator[Error]:
    dtype = sizes.dtype
    outputs, lse = _random(device, 7, 4, 80), _random(device, 7, 4) * 3
    lse[1] = -math.inf
    outputs[1] = math.nan
    tokens, starts = (torch.tensor(x, dtype=torch.int32, device=device) for x in ([2, 0, 1], [0, 2, 3, 7]))
    found = _unwritten(_random(device, 3, 4, 80, dtype=dtype))
    expected = _unwritten(found.float())
    merge_partials(outputs, lse, tokens, starts, None, found)
    merge_reference.merge_partials(outputs, lse, tokens, starts, None, expected)
    yield "one, two and four, one of them empty", _error(found, expected), TOLERANCES[dtype]


def _samples(sizes: Sizes, device: str) -> Iterator[Error]:
    """The share of rows with another token than the reference's."""
    dtype = sizes.dtype
    n, vocab = 64, sizes.vocab_size
    logits = _random(device, n, vocab, dtype=dtype) * 3

    def column(values: list, kind: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.tensor((values * n)[:n], dtype=kind, device=device)

    columns = (column([0.0, 1.0, 0.7]), column([vocab, 50], torch.int32), column([1.0, 0.9, 1.0]), column([0.0, 0.0, 0.02, 0.0]))
    seeds, positions = torch.arange(n, device=device) * 7919, column([5, 900], torch.int32)
    found = sample(logits, SamplingRows(*columns, seeds, positions))
    expected = sample_reference.sample(logits.float(), *columns, seeds, positions)
    yield "greedy, top-k, top-p, min-p", float((found != expected).float().mean()), 0.05  # of logits that are as good as equal


def _attentions(sizes: Sizes, device: str) -> Iterator[Error]:
    """Prefill, decode and groups of three levels in one step."""
    dtype = sizes.dtype
    step, num_blocks = nested_step(*sizes.nested)
    special: dict[str, Callable[[], AttentionParams]] = {
        "plain": lambda: AttentionParams(0.125, None, None, None),
        "window and soft cap": lambda: AttentionParams(0.125, 40, 5.0, None),
        "sinks": lambda: AttentionParams(0.125, None, None, _random(device, 8)),
    }
    for dim in sizes.head_dims:
        layer = (LayerShape(2, dim, dim),)
        query, key, value = (_random(device, heads, step.num_tokens, dim, dtype=dtype) for heads in (8, 2, 2))
        for kv_dtype in FORMATS:
            found = TritonAttention(layer, num_blocks, BLOCK_SIZE, dtype, device, kv_dtype=kv_dtype)
            expected = TorchAttention(layer, num_blocks, BLOCK_SIZE, torch.float32, device)
            _fill(found, expected, dtype, kv_dtype)
            for backend in (found, expected):
                backend.begin(step)
            for name, params in special.items():
                chosen = params()
                error = _error(
                    found.attend(0, query, key, value, chosen),
                    expected.attend(0, query.float(), _stored(key, kv_dtype), _stored(value, kv_dtype), chosen),
                )
                yield f"{name}, heads of {dim}, {kv_dtype}", error, TOLERANCES[dtype]


def _fill(found: TritonAttention, expected: TorchAttention, dtype: torch.dtype, kv_dtype: KvDtype) -> None:
    """The same random numbers into both caches, as they come out of storage."""
    cache = found.caches[0]
    for stored, scales, reference in (
        (cache.keys, cache.key_scales, expected.keys[0]),
        (cache.values, cache.value_scales, expected.values[0]),
    ):
        numbers = torch.randn(stored.shape, device=stored.device).to(dtype)
        if scales is None:
            stored.copy_(numbers)
        else:
            for target, source in zip((stored, scales), quantise(numbers, EIGHT_BITS[kv_dtype]), strict=True):
                target.copy_(source)
        reference.copy_(_stored(numbers, kv_dtype).permute(2, 0, 1, 3))


def _stored(numbers: torch.Tensor, kv_dtype: KvDtype) -> torch.Tensor:
    """What comes out of storage again, in float32."""
    return numbers.float() if kv_dtype == "auto" else dequantise(*quantise(numbers, EIGHT_BITS[kv_dtype]))
