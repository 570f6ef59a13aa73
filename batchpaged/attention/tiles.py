"""From an attention plan to the flat arrays of a GPU's kernels: one pure function.

    item    some queries, one run of blocks                     plan.py
    cut     a piece of the run, and the queries that see some of it: so that enough programs share a long context
    tile    as many of these queries as one program takes; with each K/V head it is one program

A query that is in one tile alone has its output from there; what several tiles give for one query are partial results,
numbered so that those of one token lie one after another, in the order of their keys.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

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
class _Run:
    item: WorkItem
    first_block: int  # where its blocks lie among those of all runs
    tokens: np.ndarray
    positions: np.ndarray


@dataclass(frozen=True)
class _Tile:
    run: _Run
    queries: np.ndarray  # which of the run's
    begin: int
    seen_by_all: int
    end: int


def plan_tiles(items: list[WorkItem], repeats: int, window: int | None, tiling: Tiling) -> TilePlan:
    """`repeats`: query heads of a K/V head, at most `tiling.most_rows`. A query is in no tile of which it sees no key."""
    tiles = [tile for run in _runs(items) for tile in _tiles(run, repeats, window, tiling)]
    tokens = _joined(tile.run.tokens[tile.queries] for tile in tiles)
    counts = np.array([len(tile.queries) for tile in tiles], dtype=INT)
    rows = _rows(tiles, counts)
    rows[:, IS_FINAL] = _are_final(tokens, rows)
    is_partial = np.repeat(rows[:, IS_FINAL] == 0, counts)
    partials, merged_tokens, merge_starts = _number_partials(tokens, np.repeat(rows[:, BEGIN], counts), is_partial)
    return TilePlan(
        tiles=_by_rows(rows, repeats, tiling),
        blocks=np.fromiter(chain.from_iterable(item.blocks for item in items), dtype=INT),
        tokens=tokens,
        positions=_joined(tile.run.positions[tile.queries] for tile in tiles),
        partials=partials,
        merged_tokens=merged_tokens,
        merge_starts=merge_starts,
    )


def _runs(items: list[WorkItem]) -> Iterator[_Run]:
    first_block = 0
    for item in items:
        yield _Run(item, first_block, np.array(item.query_indices, dtype=INT), np.array(item.query_positions, dtype=INT))
        first_block += len(item.blocks)


def _tiles(run: _Run, repeats: int, window: int | None, tiling: Tiling) -> Iterator[_Tile]:
    most_queries = tiling.most_rows // repeats
    is_cut = tiling.splits_every_tile or len(run.tokens) <= most_queries
    for begin, end in _cuts(run, window, tiling.split_keys if is_cut else None):
        seeing = np.flatnonzero(_sees_some(run.positions, begin, end, window))
        for at in range(0, len(seeing), most_queries):
            yield _tile(run, seeing[at : at + most_queries], begin, end, window, tiling.key_alignment)


def _cuts(run: _Run, window: int | None, split_keys: int | None) -> Iterator[tuple[int, int]]:
    """The positions that any query sees, cut at multiples of `split_keys`: absolute ones, whatever the run's start."""
    begin = _first_seen(run.positions, run.item.key_start, window)
    end = min(run.item.key_end, int(run.positions.max()) + 1)
    while begin < end:
        cut_end = end if split_keys is None else min(end, (begin // split_keys + 1) * split_keys)
        yield begin, cut_end
        begin = cut_end


def _first_seen(positions: np.ndarray, begin: int, window: int | None) -> int:
    return begin if window is None else max(begin, int(positions.min()) + 1 - window)


def _sees_some(positions: np.ndarray, begin: int, end: int, window: int | None) -> np.ndarray:
    seen = positions >= begin
    return seen if window is None else seen & (positions - window + 1 < end)


def _tile(run: _Run, queries: np.ndarray, begin: int, end: int, window: int | None, alignment: int) -> _Tile:
    positions = run.positions[queries]
    first = _first_seen(positions, begin, window)
    first = max(run.item.key_start, first // alignment * alignment)
    end = min(end, int(positions.max()) + 1)
    return _Tile(run, queries, first, max(first, min(end, int(positions.min()) + 1)), end)


def _rows(tiles: list[_Tile], counts: np.ndarray) -> np.ndarray:
    """-> [num_tiles, 8] with `is final` left 0"""
    rows = [(0, 0, t.run.first_block, t.run.item.key_start, t.begin, t.seen_by_all, t.end, 0) for t in tiles]
    array = np.array(rows, dtype=INT).reshape(len(tiles), 8)
    array[:, FIRST_QUERY] = np.cumsum(counts) - counts
    array[:, NUM_QUERIES] = counts
    return array


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


def _joined(arrays: Iterable[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.zeros(0, dtype=INT), *arrays])
