"""A decode step's tiles in tensors that stay where they are, so that a CUDA graph can read them in step after step."""

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
import torch

from batchpaged.attention.tiles import TilePlan
from batchpaged.attention.upload import upload
from batchpaged.kernels.triton.paged_attention.arguments import TILE_FIELDS, Runs

ALIGNMENT = 16  # numbers: what a kernel may assume of an address is then the same in every step, and nothing is compiled anew
Kind = tuple[int, int | None]  # query heads of a K/V head, window: of layers that are alike


@dataclass(frozen=True)
class DevicePlan:
    """A TilePlan on the device. What pads it does nothing, or is merged into the row behind the output's."""

    tiles: dict[int, torch.Tensor]
    runs: Runs
    merged_tokens: torch.Tensor
    merge_starts: torch.Tensor
    num_partials: int


@dataclass(frozen=True)
class Capacity:
    """Sizes of a plan's arrays: powers of two."""

    num_tiles: tuple[tuple[int, int], ...] = ()  # (most rows, how many tiles of these)
    num_blocks: int = 0
    num_queries: int = 0
    num_partials: int = 0

    def grown_to(self, plan: TilePlan) -> "Capacity":
        """Never smaller: sizes that go up and down from step to step would be as many graphs."""
        num_tiles = dict(self.num_tiles)
        for rows, tiles in plan.tiles.items():
            num_tiles[rows] = max(num_tiles.get(rows, 0), _round_up(len(tiles)))
        return Capacity(
            tuple(sorted(num_tiles.items())),
            max(self.num_blocks, _round_up(len(plan.blocks))),
            max(self.num_queries, _round_up(len(plan.tokens))),
            max(self.num_partials, _round_up(plan.num_partials)),
        )


class StaticTiles:
    """Tiles of decode steps of some number of tokens, for all kinds of layers seen so far."""

    def __init__(self, num_tokens: int, device: str) -> None:
        self.slots = torch.zeros(num_tokens, dtype=torch.int64, device=device)
        self._num_tokens = num_tokens
        self._device = device
        self._capacities: dict[Kind, Capacity] = {}
        self._buffers: dict[tuple[Kind, Capacity], _Buffer] = {}  # kept: graphs read them

    def fill(self, kind: Kind, plan: TilePlan) -> DevicePlan:
        capacity = self._capacities[kind] = self._capacities.get(kind, Capacity()).grown_to(plan)
        if (kind, capacity) not in self._buffers:
            self._buffers[kind, capacity] = _Buffer(capacity, self._num_tokens, self._device)
        return self._buffers[kind, capacity].fill(plan)

    @property
    def shape(self) -> Hashable:
        """Two steps with one shape read the same tensors."""
        return self._num_tokens, tuple(self._capacities.items())


class _Buffer:
    """All arrays of a plan, one after another, in one tensor of int32."""

    def __init__(self, capacity: Capacity, num_tokens: int, device: str) -> None:
        self._num_tokens = num_tokens
        shapes = [(most, TILE_FIELDS) for _, most in capacity.num_tiles]
        shapes += [(capacity.num_blocks,), *[(capacity.num_queries,)] * 3, (num_tokens,), (num_tokens + 1,)]
        sizes = [int(np.prod(shape)) for shape in shapes]
        self._starts = [0, *np.cumsum([-(-size // ALIGNMENT) * ALIGNMENT for size in sizes]).tolist()]
        self._numbers = torch.zeros(self._starts[-1], dtype=torch.int32, device=device)
        parts = [self._numbers[s : s + size].view(shape) for s, size, shape in zip(self._starts, sizes, shapes, strict=False)]
        self._rows = [rows for rows, _ in capacity.num_tiles]
        blocks, tokens, positions, partials, merged_tokens, merge_starts = parts[len(self._rows) :]
        tiles = dict(zip(self._rows, parts, strict=False))
        runs = Runs(blocks, tokens, positions, partials)
        self._plan = DevicePlan(tiles, runs, merged_tokens, merge_starts, capacity.num_partials)

    def fill(self, plan: TilePlan) -> DevicePlan:
        """In one transfer, which comes after what the step before reads."""
        num_more = self._num_tokens - len(plan.merged_tokens)
        merged_tokens = np.pad(plan.merged_tokens, (0, num_more), constant_values=self._num_tokens)
        merge_starts = np.pad(plan.merge_starts, (0, num_more), mode="edge")
        tiles = [plan.tiles.get(rows, np.zeros(0, np.int32)) for rows in self._rows]
        arrays = (*tiles, plan.blocks, plan.tokens, plan.positions, plan.partials, merged_tokens, merge_starts)
        numbers = np.zeros(self._starts[-1], dtype=np.int32)
        for start, array in zip(self._starts, arrays, strict=False):
            numbers[start : start + array.size] = array.reshape(-1)
        self._numbers.copy_(upload(numbers, self._numbers.device), non_blocking=True)
        return self._plan


def _round_up(n: int) -> int:
    return 1 << (n - 1).bit_length() if n else 0
