"""Paged attention by Triton kernels, on a GPU; on a CPU only in Triton's interpreter."""

from collections.abc import Hashable, Iterable

import numpy as np
import torch

from batchpaged.attention.backend import AttentionParams
from batchpaged.attention.block_part import BlockPart
from batchpaged.attention.kv_array import EIGHT_BITS, KvDtype
from batchpaged.attention.layer_shape import LayerShape
from batchpaged.attention.plan import WorkItem, plan_attention
from batchpaged.attention.sharing import ALWAYS, SharingRule
from batchpaged.attention.static_tiles import ALIGNMENT, DevicePlan, Kind, StaticTiles
from batchpaged.attention.tiles import TilePlan, plan_tiles
from batchpaged.attention.upload import upload
from batchpaged.engine.step import BlockCopy, StepPlan
from batchpaged.kernels.triton.copy_blocks.launch import cache_table, copy_blocks
from batchpaged.kernels.triton.merge_partials.launch import merge_partials
from batchpaged.kernels.triton.paged_attention.arguments import PagedCache, Results, Runs, Scoring
from batchpaged.kernels.triton.paged_attention.launch import attend_tiles
from batchpaged.kernels.triton.paged_attention.tiling import Tiling, default_tiling
from batchpaged.kernels.triton.store_kv.launch import store_kv


class TritonAttention:
    """Keys and values per layer: [num_blocks, block_size, num_kv_heads, head_dim or value_dim], in the model's type, or
    in 8 bits with a scale for each slot and head.
    """

    def __init__(
        self,
        layers: tuple[LayerShape, ...],
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: str,
        rule: SharingRule = ALWAYS,
        tiling: Tiling | None = None,
        kv_dtype: KvDtype = "auto",
    ) -> None:
        self.block_size = block_size
        self.num_blocks = num_blocks
        self._device = device
        self._rule = rule
        self._tiling = tiling or default_tiling(dtype.itemsize)
        self.caches = [self._cache(layer, EIGHT_BITS.get(kv_dtype, dtype)) for layer in layers]
        self._table = cache_table([part.tensor for part in self.parts()])
        self._slots = torch.zeros(0, dtype=torch.int64, device=device)
        self._items: list[WorkItem] = []
        self._plans: dict[Kind, DevicePlan] = {}  # of this step
        self._kinds: dict[Kind, None] = {}  # seen so far, in order
        self._static: dict[int, StaticTiles] = {}  # by number of tokens

    def _cache(self, layer: LayerShape, dtype: torch.dtype) -> PagedCache:
        slots = (self.num_blocks, self.block_size, layer.num_kv_heads)
        keys, values = (self._zeros(*slots, dim, dtype=dtype) for dim in (layer.head_dim, layer.value_dim))
        if dtype.itemsize > 1:
            return PagedCache(keys, values)
        return PagedCache(keys, values, *(self._zeros(*slots, dtype=torch.float32) for _ in range(2)))

    def _zeros(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=self._device)

    def copy(self, copies: tuple[BlockCopy, ...]) -> None:
        if not copies:
            return
        self._make_current()
        columns = [(c.source, c.target, c.num_slots) for c in copies]
        sources, targets, num_slots = upload(np.array(columns, dtype=np.int64).T.copy(), self._device)
        is_chained = not {c.source for c in copies}.isdisjoint(c.target for c in copies)
        copy_blocks(self._table, sources, targets, num_slots, is_chained)

    def parts(self) -> list[BlockPart]:
        tensors = (t for c in self.caches for t in (c.keys, c.values, c.key_scales, c.value_scales) if t is not None)
        return [BlockPart(tensor, axis=0) for tensor in tensors]

    def _make_current(self) -> None:
        """Triton starts kernels on the GPU that is the calling thread's current one."""
        if self._device != "cpu":
            torch.cuda.set_device(self._device)

    def begin(self, plan: StepPlan) -> None:
        self._make_current()
        self._slots = upload(plan.slots, self._device)
        self._items = plan_attention(plan.sequences, self.block_size, self._rule)
        self._plans = {}

    def begin_static(self, plan: StepPlan) -> Hashable:
        self._make_current()
        if plan.num_tokens not in self._static:
            self._static[plan.num_tokens] = StaticTiles(plan.num_tokens, self._device)
        static = self._static[plan.num_tokens]
        static.slots.copy_(upload(plan.slots, self._device), non_blocking=True)
        self._slots = static.slots
        self._items = plan_attention(plan.sequences, self.block_size, self._rule)
        # A kind of layer that nobody has seen yet is planned when it asks, and is part of the shape from the next step on.
        self._plans = {kind: static.fill(kind, plan_tiles(self._items, *kind, self._tiling)) for kind in self._kinds}
        return static.shape

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, params: AttentionParams
    ) -> torch.Tensor:
        cache = self.caches[layer]
        key, value, query = (_heads_in_one_piece(x.transpose(0, 1)) for x in (key, value, query))
        store_kv(key, value, cache.keys, cache.values, self._slots, cache.key_scales, cache.value_scales)
        plan = self._plan_for(query.shape[1] // key.shape[1], params.sliding_window)
        # One row more: padding is merged into it.
        output = query.new_empty(query.shape[0] + 1, query.shape[1], value.shape[2])
        results = self._results(query, output[:-1], plan.num_partials)
        scoring = Scoring(params.scaling, params.sliding_window, params.softcap, params.sinks)
        for rows, tiles in plan.tiles.items():
            attend_tiles(query, cache, tiles, rows, plan.runs, scoring, results, self._tiling.skips_mask)
        merged = (plan.merged_tokens, plan.merge_starts, params.sinks)
        merge_partials(results.partial_output, results.partial_lse, *merged, output)
        return results.output

    def _plan_for(self, repeats: int, window: int | None) -> DevicePlan:
        """Made once per step, and shared by all layers that are alike."""
        if (repeats, window) not in self._plans:
            plan = plan_tiles(self._items, repeats, window, self._tiling)
            self._plans[repeats, window] = _to_device(plan, self._device)
            self._kinds[repeats, window] = None
        return self._plans[repeats, window]

    def _results(self, query: torch.Tensor, output: torch.Tensor, num_partials: int) -> Results:
        _, num_heads, value_dim = output.shape
        return Results(
            output,
            query.new_empty(num_partials, num_heads, value_dim, dtype=torch.float32),
            query.new_empty(num_partials, num_heads, dtype=torch.float32),
        )


def _heads_in_one_piece(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _to_device(plan: TilePlan, device: str) -> DevicePlan:
    rest = (plan.blocks, plan.tokens, plan.positions, plan.partials, plan.merged_tokens, plan.merge_starts)
    tensors = _upload((*plan.tiles.values(), *rest), device)
    tiles = dict(zip(plan.tiles, tensors, strict=False))
    blocks, tokens, positions, partials, merged_tokens, merge_starts = tensors[len(tiles) :]
    return DevicePlan(tiles, Runs(blocks, tokens, positions, partials), merged_tokens, merge_starts, plan.num_partials)


def _upload(arrays: Iterable[np.ndarray], device: str) -> list[torch.Tensor]:
    """All int32 arrays in one transfer, each at an aligned place."""
    arrays = list(arrays)
    ends = np.cumsum([-(-array.size // ALIGNMENT) * ALIGNMENT for array in arrays])
    host = torch.zeros(int(ends[-1]), dtype=torch.int32, pin_memory=device != "cpu")
    starts = [0, *ends[:-1].tolist()]
    for start, array in zip(starts, arrays, strict=True):
        host.numpy()[start : start + array.size] = array.reshape(-1)
    everything = host.to(device, non_blocking=True)
    return [everything[s : s + array.size].view(array.shape) for s, array in zip(starts, arrays, strict=True)]
