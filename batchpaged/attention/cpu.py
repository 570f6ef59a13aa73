"""Paged attention on a CPU in float32, by compiled loops that read keys and values where they lie."""

from dataclasses import dataclass, fields

import numpy as np
import torch

from batchpaged.attention.backend import AttentionParams
from batchpaged.attention.block_part import BlockPart
from batchpaged.attention.layer_shape import LayerShape
from batchpaged.attention.memory import zeros_on_first_use
from batchpaged.attention.plan import WorkItem, plan_attention
from batchpaged.attention.sharing import ALWAYS, SharingRule
from batchpaged.engine.step import BlockCopy, StepPlan
from batchpaged.kernels.cpu.attention import attend_runs
from batchpaged.kernels.cpu.jit import num_threads
from batchpaged.kernels.cpu.kv import copy_slots, store_keys, store_values

NEGATIVE_INFINITY = float("-inf")
UNEVEN = 1.03  # of the greatest share of work, beside the mean: more costs more than a cache saves


@dataclass(frozen=True)
class _Level:
    """Work items of one level as the kernel wants them; see batchpaged.kernels.cpu.attention. All int64."""

    blocks: np.ndarray
    block_starts: np.ndarray  # [num_runs]
    row_starts: np.ndarray  # [num_runs + 1]
    rows: np.ndarray  # [num_queries]
    firsts: np.ndarray  # [num_queries]
    ends: np.ndarray  # [num_queries]
    tasks: np.ndarray  # [num_runs * num_kv_heads]
    share_starts: np.ndarray  # [num_threads + 1]

    def arrays(self) -> tuple[np.ndarray, ...]:
        """In the kernel's order."""
        return tuple(getattr(self, field.name) for field in fields(self))


class CpuAttention:
    """Keys per layer: [num_kv_heads, num_blocks, head_dim, block_size], transposed inside a block for the kernel's sake;
    values: [num_kv_heads, num_blocks, block_size, value_dim].
    """

    def __init__(
        self,
        layers: tuple[LayerShape, ...],
        num_blocks: int,
        block_size: int,
        rule: SharingRule = ALWAYS,
    ) -> None:
        self.block_size = block_size
        self.num_blocks = num_blocks
        self._rule = rule
        self.keys = [_zeros(layer.num_kv_heads, num_blocks, layer.head_dim, block_size) for layer in layers]
        self.values = [_zeros(layer.num_kv_heads, num_blocks, block_size, layer.value_dim) for layer in layers]
        self._slots = np.zeros(0, dtype=np.int64)
        self._items: list[WorkItem] = []
        self._levels: dict[tuple[int, int | None], list[_Level]] = {}  # by number of groups and window; of this step

    def copy(self, copies: tuple[BlockCopy, ...]) -> None:
        if copies:
            copied = np.array([(c.source, c.target, c.num_slots) for c in copies], dtype=np.int64)
            for keys, values in zip(self.keys, self.values, strict=True):
                copy_slots(keys.numpy(), values.numpy(), copied)

    def parts(self) -> list[BlockPart]:
        return [BlockPart(tensor, axis=1) for tensor in (*self.keys, *self.values)]

    def begin(self, plan: StepPlan) -> None:
        self._slots = np.array(plan.slots, dtype=np.int64)
        self._items = plan_attention(plan.sequences, self.block_size, self._rule)
        self._levels = {}

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, params: AttentionParams
    ) -> torch.Tensor:
        keys, values = self.keys[layer].numpy(), self.values[layer].numpy()
        store_keys(_rows_first(key), keys, self._slots)
        store_values(_rows_first(value), values, self._slots)
        queries = _rows_first(query)
        num_tokens, num_heads, head_dim = queries.shape
        output = torch.zeros(num_tokens, num_heads, values.shape[3])
        lse = torch.full((num_tokens, num_heads), NEGATIVE_INFINITY)
        kernel = attend_runs(num_heads // keys.shape[0], head_dim, values.shape[3], self.block_size)
        scaling, softcap = np.float32(params.scaling), np.float32(params.softcap or 0)
        for level in self._levels_for(keys.shape[0], params.sliding_window):
            kernel(queries, keys, values, *level.arrays(), scaling, softcap, output.numpy(), lse.numpy())
        if params.sinks is not None:
            output *= (lse - torch.logaddexp(lse, params.sinks.float())).exp_().unsqueeze(-1)
        return output

    def _levels_for(self, num_groups: int, window: int | None) -> list[_Level]:
        """Made once per step, and shared by all layers that are alike."""
        if (num_groups, window) not in self._levels:
            items: dict[int, list[WorkItem]] = {}
            for item in self._items:
                items.setdefault(item.level, []).append(item)
            levels = [_level(items[level], num_groups, window) for level in sorted(items)]
            self._levels[num_groups, window] = [level for level in levels if len(level.tasks)]
        return self._levels[num_groups, window]


def _zeros(*shape: int) -> torch.Tensor:
    return zeros_on_first_use(int(np.prod(shape)) * torch.float32.itemsize).view(torch.float32).view(shape)


def _rows_first(x: torch.Tensor) -> np.ndarray:
    """[heads, T, dim] -> [T, heads, dim]"""
    return x.transpose(0, 1).contiguous().numpy()


def _level(items: list[WorkItem], num_groups: int, window: int | None) -> _Level:
    """Leaves out queries whose window holds no key of their run, and runs that lose all queries that way."""
    seen = [_seen_keys(item, window) for item in items]
    kept = [i for i, (rows, _, _) in enumerate(seen) if len(rows)]
    counts = np.array([len(seen[i][0]) for i in kept], dtype=np.int64)
    lengths = np.array([len(items[i].blocks) for i in kept], dtype=np.int64)
    blocks = [np.array(items[i].blocks, dtype=np.int64) for i in kept]
    shares = _even_shares(np.repeat((lengths * (counts + 2))[:, None], num_groups, axis=1), num_threads())
    rows, firsts, ends = (np.concatenate([seen[i][part] for i in kept] or [_NOTHING]) for part in range(3))
    return _Level(
        blocks=np.concatenate(blocks or [_NOTHING]),
        block_starts=np.cumsum(lengths) - lengths,
        row_starts=np.concatenate([[0], np.cumsum(counts)]),
        rows=rows,
        firsts=firsts,
        ends=ends,
        tasks=np.concatenate(shares),
        share_starts=np.cumsum([0, *map(len, shares)]),
    )


_NOTHING = np.zeros(0, dtype=np.int64)


def _seen_keys(item: WorkItem, window: int | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """-> rows, first key, end of the keys that each query sees of the run, counted from its start; int64 [n] each."""
    rows = np.array(item.query_indices, dtype=np.int64)
    stops = np.array(item.query_positions, dtype=np.int64) + 1
    ends = np.minimum(stops, item.key_end) - item.key_start
    firsts = np.zeros_like(ends) if window is None else np.maximum(stops - window - item.key_start, 0)
    sees_any = firsts < ends
    return rows[sees_any], firsts[sees_any], ends[sees_any]


def _even_shares(work: np.ndarray, num_shares: int) -> list[np.ndarray]:
    """work [num_runs, num_groups] of the tasks run * num_groups + group -> numbers of tasks, about equal work in each share.

    Runs come in the order of their blocks, and a share takes neighbours of one group: what they have in common is still in the
    processor's cache for the next one. Only where large tasks would make such shares uneven, each goes to the least busy share.
    """
    tasks = np.arange(work.size).reshape(work.shape).T.ravel()
    ends = np.cumsum(work.T.ravel())
    even = ends[-1] / num_shares if len(ends) else 0
    cuts = np.searchsorted(ends - work.T.ravel() / 2, even * np.arange(1, num_shares))
    shares = np.split(tasks, cuts)
    if max((work.ravel()[share].sum() for share in shares), default=0) <= UNEVEN * even:
        return shares
    falling = np.argsort(-work.ravel(), kind="stable")
    return [falling[share::num_shares] for share in range(num_shares)]
