"""Paged attention on a CPU in float32: a compiled loop for what each query sees alone, one fused call for each shared run.

Neither copies keys and values, as long as the blocks of a run follow one another in memory. What these two cannot do
(soft-capping, values of another size than keys, shorter types) is left to the reference.
"""

from dataclasses import dataclass

import numpy as np
import torch

from batchpaged.attention.backend import AttentionParams
from batchpaged.attention.plan import WorkItem
from batchpaged.attention.reference import NEGATIVE_INFINITY, TorchAttention
from batchpaged.engine.step import BlockCopy, StepPlan
from batchpaged.kernels.cpu.attention import attend_rows, merge, pack_queries
from batchpaged.kernels.cpu.jit import num_threads
from batchpaged.kernels.cpu.kv import copy_slots, store

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


@dataclass(frozen=True)
class _Narrow:
    """Queries that attend to their own blocks, one entry each; sorted so that threads get equal shares."""

    blocks: np.ndarray  # int64, runs one after another
    rows: np.ndarray  # int64 [n], of the step's token axis
    starts: np.ndarray  # int64 [n], where the entry's run begins in `blocks`
    ends: np.ndarray  # int64 [n], keys of the run that the query sees, counted from its first slot

    def firsts(self, window: int | None) -> np.ndarray:
        """int64 [n]: the first key that each query sees."""
        if window is None:
            return np.zeros_like(self.ends)
        return np.maximum(self.ends - window, 0)


@dataclass(frozen=True)
class _Run:
    """Many queries on one run of keys: a matrix product."""

    item: WorkItem
    first_block: int | None  # where the run's blocks follow one another
    blocks: torch.Tensor  # int64

    @property
    def num_keys(self) -> int:
        return self.item.key_end - self.item.key_start


@dataclass(frozen=True)
class _Wide:
    """Runs with the queries that see any of their keys, within some window; the same for all layers that have it."""

    rows: np.ndarray  # int64, of the step's token axis, one run's after another's
    parts: list[tuple[_Run, int, int, torch.Tensor | None]]  # run, its share of `rows`, additive [n * repeats, num_keys]


def _wide(runs: list[_Run], window: int | None, repeats: int) -> _Wide:
    rows, parts, end = [np.zeros(0, dtype=np.int64)], [], 0
    for run in runs:
        own_rows, mask = _visible_rows(run, window, repeats)
        if len(own_rows):
            parts.append((run, end, end + len(own_rows), mask))
            rows.append(own_rows)
            end += len(own_rows)
    return _Wide(np.concatenate(rows), parts)


def _visible_rows(run: _Run, window: int | None, repeats: int) -> tuple[np.ndarray, torch.Tensor | None]:
    """-> rows of the queries that see any key of the run; the mask, None where they see all."""
    item = run.item
    keys = np.arange(item.key_start, item.key_end)
    positions = np.array(item.query_positions)[:, None]
    seen = keys <= positions
    if window is not None:
        seen &= keys > positions - window
    sees_any = seen.any(axis=1)
    rows, seen = np.array(item.query_indices, dtype=np.int64)[sees_any], seen[sees_any]
    if seen.all():
        return rows, None
    return rows, torch.from_numpy(np.where(seen, np.float32(0), np.float32(NEGATIVE_INFINITY)).repeat(repeats, axis=0))


class CpuAttention(TorchAttention):
    """The layout is the reference's: keys [num_kv_heads, num_blocks, block_size, head_dim], one tensor per layer."""

    def copy(self, copies: tuple[BlockCopy, ...]) -> None:
        if self._dtype is not torch.float32:
            super().copy(copies)
        elif copies:
            size = self.block_size
            sources = np.array([c.source * size + i for c in copies for i in range(c.num_slots)])
            targets = np.array([c.target * size + i for c in copies for i in range(c.num_slots)])
            for cache in (*self.keys, *self.values):
                copy_slots(_slots(cache), sources, targets)

    def begin(self, plan: StepPlan) -> None:
        super().begin(plan)
        self._slot_array = np.array(plan.slots, dtype=np.int64)
        self._narrow = _narrow([item for item in self._items if not self._is_wide(item)])
        self._runs = [_run(item) for item in self._items if self._is_wide(item)]
        self._wide: dict[int | None, _Wide] = {}  # by window

    def _is_wide(self, item: WorkItem) -> bool:
        return item.level > 0 or self._rule.is_product(len(item.query_indices), item.key_end - item.key_start)

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, params: AttentionParams
    ) -> torch.Tensor:
        is_plain = params.softcap is None and key.shape[-1] == value.shape[-1]
        if self._dtype is not torch.float32 or query.dtype is not torch.float32 or not is_plain:
            return super().attend(layer, query, key, value, params)
        keys, values = self.keys[layer], self.values[layer]
        store(_rows_first(key), _slots(keys), self._slot_array)
        store(_rows_first(value), _slots(values), self._slot_array)
        queries = query.transpose(0, 1).contiguous()  # [T, H, D]
        output = torch.zeros(*queries.shape[:2], value.shape[-1])
        lse = torch.full(queries.shape[:2], NEGATIVE_INFINITY)
        if self._runs:
            self._attend_wide(queries, keys, values, params, output, lse)
        if len(self._narrow.rows):
            self._attend_narrow(queries, keys, values, params, output, lse)
        if params.sinks is not None:
            output *= (lse - torch.logaddexp(lse, params.sinks.float())).exp_().unsqueeze(-1)
        return output

    def _attend_narrow(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        params: AttentionParams,
        output: torch.Tensor,
        lse: torch.Tensor,
    ) -> None:
        n, window = self._narrow, params.sliding_window
        kernel = attend_rows(queries.shape[1] // keys.shape[0], keys.shape[-1], values.shape[-1], self.block_size)
        arrays = (n.blocks, n.rows, n.starts, n.firsts(window), n.ends, np.float32(params.scaling))
        kernel(queries.numpy(), keys.numpy(), values.numpy(), *arrays, output.numpy(), lse.numpy())

    def _attend_wide(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        params: AttentionParams,
        output: torch.Tensor,
        lse: torch.Tensor,
    ) -> None:
        groups, window = keys.shape[0], params.sliding_window
        repeats = queries.shape[1] // groups
        if window not in self._wide:
            self._wide[window] = _wide(self._runs, window, repeats)
        wide = self._wide[window]
        packed = torch.empty(1, groups, len(wide.rows) * repeats, queries.shape[-1])
        pack_queries(queries.numpy(), wide.rows, packed[0].numpy())
        keys, values = keys.flatten(1, 2)[None], values.flatten(1, 2)[None]
        output_array, lse_array = output.numpy(), lse.numpy()
        for run, start, end, mask in wide.parts:
            q = packed.narrow(2, start * repeats, (end - start) * repeats)
            k, v = self._keys_of(keys, run), self._keys_of(values, run)
            partial, partial_lse = _flash(q, k, v, 0.0, False, attn_mask=mask, scale=params.scaling)
            merge(partial.numpy()[0], partial_lse.numpy()[0], wide.rows[start:end], output_array, lse_array)

    def _keys_of(self, slots: torch.Tensor, run: _Run) -> torch.Tensor:
        """[1, G, num_slots, dim] -> [1, G, num_keys, dim], a view where the run's blocks follow one another."""
        if run.first_block is not None:
            return slots.narrow(2, run.first_block * self.block_size, run.num_keys)
        blocks = slots[0].unflatten(1, (-1, self.block_size)).index_select(1, run.blocks)
        return blocks.flatten(1, 2)[None, :, : run.num_keys]


def _slots(cache: torch.Tensor) -> np.ndarray:
    """[G, num_slots, dim]"""
    return cache.flatten(1, 2).numpy()


def _rows_first(new: torch.Tensor) -> np.ndarray:
    """[G, T, dim] -> [T, G, dim]"""
    return new.transpose(0, 1).contiguous().numpy()


def _narrow(items: list[WorkItem]) -> _Narrow:
    blocks = np.array([block for item in items for block in item.blocks], dtype=np.int64)
    run_lengths = np.array([len(item.blocks) for item in items], dtype=np.int64)
    counts = [len(item.query_indices) for item in items]
    starts = np.repeat(np.cumsum(run_lengths) - run_lengths, counts)
    key_starts = np.repeat(np.array([item.key_start for item in items], dtype=np.int64), counts)
    rows = np.array([row for item in items for row in item.query_indices], dtype=np.int64)
    positions = np.array([position for item in items for position in item.query_positions], dtype=np.int64)
    ends = positions + 1 - key_starts
    order = _even_shares(ends, num_threads())
    return _Narrow(blocks, rows[order], starts[order], ends[order])


def _even_shares(work: np.ndarray, num_shares: int) -> np.ndarray:
    """An order whose `num_shares` equal parts, what a parallel loop gives each thread, hold about equal work."""
    falling = np.argsort(-work, kind="stable")
    return np.concatenate([falling[share::num_shares] for share in range(num_shares)])


def _run(item: WorkItem) -> _Run:
    follow = item.blocks == tuple(range(item.blocks[0], item.blocks[0] + len(item.blocks)))
    return _Run(item, item.blocks[0] if follow else None, torch.tensor(item.blocks))
