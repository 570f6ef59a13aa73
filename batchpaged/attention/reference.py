"""Paged attention in plain torch operations, on any device: the reference for every other backend."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from batchpaged.attention.backend import AttentionParams
from batchpaged.attention.batches import PaddedBatch, pad_into_batches
from batchpaged.attention.block_part import BlockPart
from batchpaged.attention.kv_array import KvArray, KvDtype
from batchpaged.attention.layer_shape import LayerShape
from batchpaged.attention.plan import WorkItem, plan_attention
from batchpaged.attention.sharing import ALWAYS, SharingRule
from batchpaged.attention.static_decode import StaticDecode, StaticShape, static_shape
from batchpaged.attention.upload import upload
from batchpaged.engine.step import BlockCopy, StepPlan

NEGATIVE_INFINITY = float("-inf")


@dataclass(frozen=True)
class _Batch:
    """A padded batch as tensors: B items with Q queries and N blocks each, L keys."""

    shape: tuple[int, int]  # B, Q
    query_index: torch.Tensor  # [B * Q]
    blocks: torch.Tensor  # [B * N]
    valid: torch.Tensor | None  # [number of real queries] places in B * Q; None when there is no padding
    rows: torch.Tensor  # [number of real queries] rows of the step's token axis
    mask: Callable[[int | None], torch.Tensor | None]  # of a window: additive [B, Q, L], None when every key is seen


class TorchAttention:
    """Keys and values of each layer are in a KvArray, in the model's type or in 8 bits; products are in the model's type."""

    def __init__(
        self,
        layers: tuple[LayerShape, ...],
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: str = "cpu",
        rule: SharingRule = ALWAYS,
        kv_dtype: KvDtype = "auto",
    ) -> None:
        self.block_size = block_size
        self.num_blocks = num_blocks
        self._device = device
        self._rule = rule

        def array(num_kv_heads: int, dim: int) -> KvArray:
            return KvArray((num_kv_heads, num_blocks, block_size, dim), dtype, kv_dtype, device)

        self._keys = [array(layer.num_kv_heads, layer.head_dim) for layer in layers]
        self._values = [array(layer.num_kv_heads, layer.value_dim) for layer in layers]
        self._slots: torch.Tensor | None = None
        self._items: list[WorkItem] = []
        self._batches: list[_Batch] | None = None
        self._static: dict[StaticShape, tuple[StaticDecode, list[_Batch]]] = {}  # kept: graphs read these tensors

    @property
    def keys(self) -> list[torch.Tensor]:
        """[num_kv_heads, num_blocks, block_size, head_dim] of each layer, as stored."""
        return [array.numbers for array in self._keys]

    @property
    def values(self) -> list[torch.Tensor]:
        return [array.numbers for array in self._values]

    def copy(self, copies: tuple[BlockCopy, ...]) -> None:
        if not copies:
            return
        size = self.block_size
        source = torch.tensor([c.source * size + i for c in copies for i in range(c.num_slots)], device=self._device)
        target = torch.tensor([c.target * size + i for c in copies for i in range(c.num_slots)], device=self._device)
        for array in (*self._keys, *self._values):
            array.copy(source, target)

    def parts(self) -> list[BlockPart]:
        return [BlockPart(tensor, axis=1) for array in (*self._keys, *self._values) for tensor in array.tensors()]

    def begin(self, plan: StepPlan) -> None:
        self._slots = upload(plan.slots, self._device)
        self._items = plan_attention(plan.sequences, self.block_size, self._rule)
        self._batches = None

    def begin_static(self, plan: StepPlan) -> Hashable:
        """Runs are not shared here: each sequence attends to its whole context by itself."""
        shape = static_shape(plan)
        if shape not in self._static:
            static = StaticDecode.empty(shape, self._device)
            batches = [_static_batch(static, chunk, self.block_size) for chunk in static.chunks(self.block_size)]
            self._static[shape] = static, batches
        static, self._batches = self._static[shape]
        static.fill(plan)
        self._slots = static.slots
        return shape

    def _padded_batches(self) -> list[_Batch]:
        """Made once per step, by the first layer that asks."""
        if self._batches is None:
            self._batches = [self._to_device(batch) for batch in pad_into_batches(self._items, self.block_size)]
        return self._batches

    def _to_device(self, padded: PaddedBatch) -> _Batch:
        is_query = padded.is_query.reshape(-1)
        index = upload(padded.query_index.reshape(-1), self._device)
        valid = None if is_query.all() else upload(np.flatnonzero(is_query), self._device)
        blocks = upload(padded.blocks.reshape(-1), self._device)
        rows = index if valid is None else index[valid]
        return _Batch(padded.query_index.shape, index, blocks, valid, rows, partial(_mask, padded, {}, self._device))

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, params: AttentionParams
    ) -> torch.Tensor:
        self._keys[layer].store(self._slots, key)
        self._values[layer].store(self._slots, value)
        num_heads, num_tokens, _ = query.shape
        num_kv_heads, value_dim = value.shape[0], value.shape[-1]
        grouped = query.view(num_kv_heads, num_heads // num_kv_heads, num_tokens, -1)  # [G, R, T, D]
        merged = _Merged(grouped, value_dim)
        for batch in self._padded_batches():
            output, lse = self._attend_batch(batch, self._keys[layer], self._values[layer], grouped, params)
            merged.add(batch.rows, output, lse)
        return merged.result(params.sinks)

    def _attend_batch(
        self, batch: _Batch, keys: KvArray, values: KvArray, query: torch.Tensor, params: AttentionParams
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """-> output [G, R, n, value_dim], lse [G, R, n] for the batch's n real queries."""
        num_items, num_queries = batch.shape
        groups, repeats, _, dim = query.shape
        q = query.index_select(2, batch.query_index).view(groups, repeats, num_items, num_queries, dim)
        q = q.transpose(1, 2).reshape(groups * num_items, repeats * num_queries, dim) * params.scaling
        k = keys.gather(batch.blocks, q.dtype).reshape(groups * num_items, -1, dim)
        v = values.gather(batch.blocks, q.dtype).reshape(groups * num_items, k.shape[1], -1)
        scores = torch.bmm(q, k.transpose(1, 2)).float()  # [G * B, R * Q, L]
        if params.softcap is not None:
            scores = torch.tanh(scores / params.softcap) * params.softcap
        mask = batch.mask(params.sliding_window)
        if mask is not None:
            scores.view(groups, num_items, repeats, num_queries, -1).add_(mask[None, :, None])
        probabilities, lse = _softmax(scores)
        output = torch.bmm(probabilities.to(q.dtype), v)
        shape = (groups, num_items, repeats, num_queries)
        return self._unpad(output.view(*shape, -1), batch), self._unpad(lse.view(*shape, 1), batch).squeeze(-1)

    def _unpad(self, x: torch.Tensor, batch: _Batch) -> torch.Tensor:
        """[G, B, R, Q, d] -> [G, R, n, d]"""
        groups, _, repeats, _, dim = x.shape
        x = x.transpose(1, 2).reshape(groups, repeats, -1, dim)
        return x if batch.valid is None else x.index_select(2, batch.valid)


def _mask(
    padded: PaddedBatch, masks: dict[int | None, torch.Tensor | None], device: str, window: int | None
) -> torch.Tensor | None:
    """`masks`: those made in this step, by window; all layers share them."""
    if window not in masks:
        seen = _visible(padded, window)
        mask = None if seen.all() else np.where(seen, np.float32(0), np.float32(NEGATIVE_INFINITY))
        masks[window] = None if mask is None else upload(mask, device)
    return masks[window]


def _visible(padded: PaddedBatch, window: int | None) -> np.ndarray:
    """bool [B, Q, L]: which keys each query sees. Padding queries see what query 0 of their item does not: nothing."""
    query = padded.query_position[:, :, None]
    key = padded.key_position[:, None, :]
    seen = key <= query
    return seen if window is None else seen & (key > query - window)


def _static_batch(static: StaticDecode, chunk: slice, block_size: int) -> _Batch:
    """Some sequences of a static step. All of it is computed on the device: a graph runs it again on other numbers."""
    blocks, lengths = static.blocks[chunk], static.lengths[chunk]
    rows = torch.arange(chunk.start, chunk.start + len(blocks), device=blocks.device)
    keys = torch.arange(blocks.shape[1] * block_size, device=blocks.device)

    def mask(window: int | None) -> torch.Tensor:
        unseen = keys >= lengths[:, None]  # [B, L]
        if window is not None:
            unseen |= keys < lengths[:, None] - window
        zeros = torch.zeros(unseen.shape, device=blocks.device)
        return zeros.masked_fill_(unseen, NEGATIVE_INFINITY)[:, None]

    return _Batch((len(blocks), 1), rows, blocks.reshape(-1), None, rows, mask)


def _softmax(scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Softmax over the last axis and its log-sum-exp; a row that sees no key gives zeros and -inf. Overwrites scores."""
    top = scores.amax(-1, keepdim=True)
    top = torch.where(top == NEGATIVE_INFINITY, torch.zeros_like(top), top)
    weights = scores.sub_(top).exp_()
    total = weights.sum(-1, keepdim=True)
    weights.div_(total.clamp_min(torch.finfo(weights.dtype).tiny))
    return weights, top + total.log()


class _Merged:
    """Partial attention results of a step's tokens, merged by log-sum-exp; float32 whatever the model's type."""

    def __init__(self, query: torch.Tensor, value_dim: int) -> None:
        groups, repeats, num_tokens, _ = query.shape
        self._dtype = query.dtype
        self._output = query.new_zeros((groups, repeats, num_tokens, value_dim), dtype=torch.float32)
        self._lse = query.new_full((groups, repeats, num_tokens), NEGATIVE_INFINITY, dtype=torch.float32)

    def add(self, rows: torch.Tensor, output: torch.Tensor, lse: torch.Tensor) -> None:
        """output [G, R, n, value_dim] and lse [G, R, n] of the tokens `rows` [n], each at most once."""
        old = self._lse.index_select(2, rows)
        new = torch.logaddexp(old, lse)
        pivot = torch.where(new == NEGATIVE_INFINITY, torch.zeros_like(new), new)
        kept = self._output.index_select(2, rows) * (old - pivot).exp_().unsqueeze(-1)
        self._output.index_copy_(2, rows, kept.add_(output * (lse - pivot).exp_().unsqueeze(-1)))
        self._lse.index_copy_(2, rows, new)

    def result(self, sinks: torch.Tensor | None) -> torch.Tensor:
        """-> [num_tokens, num_heads, value_dim]"""
        output = self._output
        if sinks is not None:
            sink = sinks.to(self._lse.dtype).view(*self._lse.shape[:2], 1)
            output = output * (self._lse - torch.logaddexp(self._lse, sink)).exp_().unsqueeze(-1)
        groups, repeats, num_tokens, dim = output.shape
        # contiguous: some models take a view of it.
        output = output.permute(2, 0, 1, 3).reshape(num_tokens, groups * repeats, dim)
        return output.to(self._dtype).contiguous()
