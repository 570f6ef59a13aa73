"""From an attention plan to the flat arrays of a GPU's kernels: one pure function.

    item    some queries, one run of blocks                     plan.py
    cut     a piece of the run, and the queries that see some of it: so that enough programs share a long context
    tile    as many of these queries as one program takes; with each K/V head it is one program

A query that is in one tile alone has its output from there; what several tiles give for one query are partial results,
numbered so that those of one token lie one after another, in the order of their keys.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from batchpaged.attention.plan import WorkItem
from batchpaged.kernels.triton.paged_attention.tiling import Tiling

INT = np.int32
FIRST_QUERY, NUM_QUERIES, FIRST_BLOCK, RUN_START, BEGIN, SEEN_BY_ALL, END, IS_FINAL = range(8)


@dataclass(frozen=True)
class TilePlan:
    """All int32. A row of `tiles` is

    first query, number of queries: which of `tokens`, `positions` and `partials` are the tile's;
    first block: where in `blocks` its run begins;
    run start: position of the first slot of that block;
    begin, end: the tile's keys lie at these positions; those before `seen by all` (>= begin) are seen by every query;
    is final: 1 where the tile writes outputs, 0 where it writes partial results.
    """

    tiles: dict[int, np.ndarray]  # by most rows: [num_tiles, 8], those with most keys first
    blocks: np.ndarray  # block ids of all runs, one after another
    tokens: np.ndarray  # [num_queries] rows of the step's token axis
    positions: np.ndarray  # [num_queries] of the same tokens in their sequences
    partials: np.ndarray  # [num_queries] rows of the partial results; 0 where a tile is final
    merged_tokens: np.ndarray  # [num_merged] tokens that have partial results
    merge_starts: np.ndarray  # [num_merged + 1] the first one of each, and the number of all

    @property
    def num_partials(self) -> int:
        return int(self.merge_starts[-1])


@dataclass(frozen=True)
class _Tiles:
    """Tiles, and their queries one after another."""

    rows: np.ndarray  # int32 [num_tiles, 8] without first query and `is final`
    tokens: np.ndarray  # int32 [num_queries]
    positions: np.ndarray


def plan_tiles(items: list[WorkItem], repeats: int, window: int | None, tiling: Tiling) -> TilePlan:
    """`repeats`: query heads of a K/V head, at most `tiling.most_rows`. A query is in no tile of which it sees no key."""
    tiles = _all_tiles(items, repeats, window, tiling)
    rows, counts = tiles.rows, tiles.rows[:, NUM_QUERIES]
    rows[:, FIRST_QUERY] = np.cumsum(counts) - counts
    rows[:, IS_FINAL] = _are_final(tiles.tokens, rows)
    is_partial = np.repeat(rows[:, IS_FINAL] == 0, counts)
    partials, merged_tokens, merge_starts = _number_partials(tiles.tokens, np.repeat(rows[:, BEGIN], counts), is_partial)
    return TilePlan(
        tiles=_by_rows(rows, repeats, tiling),
        blocks=np.fromiter(chain.from_iterable(item.blocks for item in items), dtype=INT),
        tokens=tiles.tokens,
        positions=tiles.positions,
        partials=partials,
        merged_tokens=merged_tokens,
        merge_starts=merge_starts,
    )


def _all_tiles(items: list[WorkItem], repeats: int, window: int | None, tiling: Tiling) -> _Tiles:
    """Items of one query, the most by far in a decode step, are cut all at once."""
    first_blocks = np.cumsum([0, *(len(item.blocks) for item in items)]).tolist()
    single = [(item, first) for item, first in zip(items, first_blocks, strict=False) if len(item.query_indices) == 1]
    parts = [_tiles_of_single_queries(single, window, tiling)]
    for item, first_block in zip(items, first_blocks, strict=False):
        if len(item.query_indices) > 1:
            parts += _tiles_of(item, first_block, repeats, window, tiling)
    return _Tiles(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("rows", "tokens", "positions")))


def _tiles_of_single_queries(items: list[tuple[WorkItem, int]], window: int | None, tiling: Tiling) -> _Tiles:
    fields = [(i.query_indices[0], i.query_positions[0], first, i.key_start, i.key_end) for i, first in items]
    token, position, first_block, start, end = np.array(fields, dtype=INT).reshape(-1, 5).T
    end = np.minimum(end, position + 1)
    begin = start if window is None else np.maximum(start, _aligned(position + 1 - window, tiling))
    first_cut, split = begin // tiling.split_keys, tiling.split_keys
    num_cuts = np.maximum((end - 1) // split - first_cut + 1, 0) * (begin < end)
    which = np.repeat(np.arange(len(items)), num_cuts)
    cut = first_cut[which] + np.arange(len(which)) - np.repeat(np.cumsum(num_cuts) - num_cuts, num_cuts)
    cut_begin, cut_end = np.maximum(begin[which], cut * split), np.minimum(end[which], (cut + 1) * split)
    rows = np.zeros((len(which), 8), dtype=INT)
    rows[:, NUM_QUERIES] = 1
    for field, values in (
        (FIRST_BLOCK, first_block[which]),
        (RUN_START, start[which]),
        (BEGIN, cut_begin),
        (SEEN_BY_ALL, cut_end),
        (END, cut_end),
    ):
        rows[:, field] = values
    return _Tiles(rows, token[which], position[which])


def _tiles_of(item: WorkItem, first_block: int, repeats: int, window: int | None, tiling: Tiling) -> Iterator[_Tiles]:
    tokens, positions = np.array(item.query_indices, dtype=INT), np.array(item.query_positions, dtype=INT)
    most_queries = tiling.most_rows // repeats
    is_cut = tiling.splits_every_tile or len(tokens) <= most_queries
    for begin, end in _cuts(item, positions, window, tiling.split_keys if is_cut else None):
        seeing = np.flatnonzero(_sees_some(positions, begin, end, window))
        for at in range(0, len(seeing), most_queries):
            chosen = seeing[at : at + most_queries]
            keys = _keys(item, positions[chosen], begin, end, window, tiling)
            row = np.array([(0, len(chosen), first_block, item.key_start, *keys, 0)], dtype=INT)
            yield _Tiles(row, tokens[chosen], positions[chosen])


def _cuts(
    item: WorkItem, positions: np.ndarray, window: int | None, split_keys: int | None
) -> Iterator[tuple[int, int]]:
    """The positions that any query sees, cut at multiples of `split_keys`: absolute ones, whatever the run's start."""
    begin = item.key_start if window is None else max(item.key_start, int(positions.min()) + 1 - window)
    end = min(item.key_end, int(positions.max()) + 1)
    while begin < end:
        cut_end = end if split_keys is None else min(end, (begin // split_keys + 1) * split_keys)
        yield begin, cut_end
        begin = cut_end


def _sees_some(positions: np.ndarray, begin: int, end: int, window: int | None) -> np.ndarray:
    seen = positions >= begin
    return seen if window is None else seen & (positions - window + 1 < end)


def _keys(
    item: WorkItem, positions: np.ndarray, begin: int, end: int, window: int | None, tiling: Tiling
) -> tuple[int, int, int]:
    """-> begin, seen by all, end: of [begin, end) what these queries see"""
    if window is not None:
        begin = max(item.key_start, _aligned(max(begin, int(positions.min()) + 1 - window), tiling))
    end = min(end, int(positions.max()) + 1)
    return begin, max(begin, min(end, int(positions.min()) + 1)), end


def _aligned(position: Any, tiling: Tiling) -> Any:
    return position // tiling.key_alignment * tiling.key_alignment


def _are_final(tokens: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """bool [num_tiles]: none of the tile's queries is in another one."""
    if not len(rows):
        return np.zeros(0, dtype=bool)
    num_tiles = np.bincount(tokens)[tokens]
    return np.maximum.reduceat(num_tiles, rows[:, FIRST_QUERY]) == 1


def _number_partials(
    tokens: np.ndarray, begins: np.ndarray, is_partial: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """-> partials [num_queries], merged_tokens, merge_starts; ordered by token, then by their first key."""
    which = np.flatnonzero(is_partial)
    order = which[np.lexsort((begins[which], tokens[which]))]
    partials = np.zeros(len(tokens), dtype=INT)
    partials[order] = np.arange(len(order), dtype=INT)
    merged_tokens, counts = np.unique(tokens[order], return_counts=True)
    return partials, merged_tokens.astype(INT), np.concatenate([[0], np.cumsum(counts)]).astype(INT)


def _by_rows(tiles: np.ndarray, repeats: int, tiling: Tiling) -> dict[int, np.ndarray]:
    """The longest first: programs start in this order, and one that starts last must not end long after the others."""
    tiles = tiles[np.argsort(tiles[:, BEGIN] - tiles[:, END], kind="stable")]
    smallest = np.searchsorted(tiling.tile_rows, tiles[:, NUM_QUERIES] * repeats)
    return {rows: tiles[smallest == i] for i, rows in enumerate(tiling.tile_rows) if (smallest == i).any()}
