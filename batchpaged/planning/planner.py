"""Plans a data set of any size: an external sort of its tokenised prompts, cut into units.

    files ──> sorted runs ──> splitters ──> partitions in order ──> units, as row groups of the plan's files

Every step is a function from files to files that returns small facts. Steps of a stage are independent of each other; an
`Each` runs them, one after the other (`in_turn`) or all over a cluster. Memory of a step: a run, or a partition, and its
sorted copy.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from batchpaged.planning.cost import CostModel
from batchpaged.planning.keys import TOKEN_BYTES, num_common
from batchpaged.planning.partitions import Partition, PartitionFacts, choose_splitters, order_partition
from batchpaged.planning.plan_file import publish_plan
from batchpaged.planning.sorted_runs import (
    SortedRun,
    choose_run_bytes,
    choose_sample_bytes,
    file_size,
    group_files,
    sort_files,
)
from batchpaged.planning.summary import PlanSummary
from batchpaged.planning.unit_writing import cut_partition, failed_units, write_failed, write_partition
from batchpaged.planning.units import Unit, UnitSize, unit_size

RUN_BYTES = 128 << 20

Each = Callable[[Callable[..., Any], Sequence[tuple[Any, ...]]], list[Any]]  # one result per tuple of arguments


@dataclass(frozen=True)
class PlanSettings:
    cost: CostModel
    num_workers: int
    run_bytes: int = RUN_BYTES  # most that a run, or a partition, takes in memory


@dataclass(frozen=True)
class _Ordered:
    """A data set in planned order, not yet cut."""

    runs: list[SortedRun]
    partitions: list[Partition]
    facts: list[PartitionFacts]  # of each partition, its first row seen after the last row of the one before
    num_shared: list[int]  # of each partition's first row

    @property
    def num_failed(self) -> int:
        return sum(run.num_failed for run in self.runs)

    def size(self, num_workers: int) -> UnitSize:
        num_rows = sum(facts.num_rows for facts in self.facts)
        return unit_size(num_rows, sum(facts.cost for facts in self.facts), num_workers)


def in_turn(function: Callable[..., Any], items: Sequence[tuple[Any, ...]]) -> list[Any]:
    return [function(*item) for item in items]


def preview_plan(
    files: Sequence[Path], work: Path, settings: PlanSettings, each: Each = in_turn
) -> tuple[PlanSummary, list[Unit]]:
    """The plan of tokenised files (PROMPTS_SCHEMA), without its rows.

    `work` is an empty folder for what lies between the steps, about as large as the prompts are in memory. The caller
    deletes it. Raises UnfinishedError naming a file that cannot be read.
    """
    ordered = _order(files, work, settings, each)
    size = ordered.size(settings.num_workers)
    places = zip(ordered.partitions, ordered.num_shared, strict=True)
    pieces = each(cut_partition, [(*place, size, settings.cost) for place in places])
    units = _number([*pieces, failed_units(ordered.num_failed)])
    return _summarise(ordered, len(units)), units


def make_plan(
    files: Sequence[Path], work: Path, folder: Path, settings: PlanSettings, each: Each = in_turn
) -> PlanSummary:
    """The same, published in `folder`, which must be on the file system of `work`."""
    ordered = _order(files, work, settings, each)
    size = ordered.size(settings.num_workers)
    parts = work / "plan"
    parts.mkdir()
    targets = [parts / f"part-{partition.index:05}" for partition in ordered.partitions]
    places = zip(ordered.partitions, ordered.num_shared, targets, strict=True)
    pieces = each(write_partition, [(part, shared, size, settings.cost, target) for part, shared, target in places])
    if ordered.num_failed:
        targets.append(parts / "failed")
        pieces.append(failed_units(ordered.num_failed))
        each(write_failed, [(ordered.runs, targets[-1])])
    units = _number(pieces)
    summary = _summarise(ordered, len(units))
    publish_plan(folder, list(zip(targets, map(len, pieces), strict=True)), summary, units)
    return summary


def _order(files: Sequence[Path], work: Path, settings: PlanSettings, each: Each) -> _Ordered:
    sizes = [file_size(path) for path in files]
    run_bytes = choose_run_bytes(sizes, settings.run_bytes)
    groups = group_files(files, sizes, run_bytes)
    sample_bytes = choose_sample_bytes(sizes, run_bytes)
    pieces = each(sort_files, [(work, i, group, run_bytes, sample_bytes) for i, group in enumerate(groups)])
    runs = [run for piece in pieces for run in piece]
    partitions = _partitions(runs, work, run_bytes)
    facts = each(order_partition, [(partition, settings.cost) for partition in partitions])
    filled = [(partition, fact) for partition, fact in zip(partitions, facts, strict=True) if fact.num_rows]
    return _join(runs, filled, settings.cost)


def _partitions(runs: Sequence[SortedRun], work: Path, partition_bytes: int) -> list[Partition]:
    splitters = choose_splitters(runs, -(-sum(run.num_bytes for run in runs) // partition_bytes))
    bounds = pairwise([None, *splitters, None])
    paths = tuple(run.path for run in runs if run.num_rows)
    return [Partition(i, paths, *pair, work / f"order-{i:05}") for i, pair in enumerate(bounds)] if paths else []


def _join(runs: list[SortedRun], partitions: list[tuple[Partition, PartitionFacts]], model: CostModel) -> _Ordered:
    """Each partition's first row gets the neighbour that it did not see."""
    facts = [fact for _, fact in partitions]
    num_shared = [0, *(num_common(a.last, b.first) for a, b in pairwise(facts))][: len(facts)]
    pairs = zip(facts[1:], num_shared[1:], _num_repeated(facts, num_shared)[1:], strict=True)
    joined = [*facts[:1], *(_after_neighbour(*pair, model) for pair in pairs)]
    return _Ordered(runs, [partition for partition, _ in partitions], joined, num_shared)


def _num_repeated(facts: Sequence[PartitionFacts], num_shared: Sequence[int]) -> list[int]:
    """Of each partition: grammars of the rows with its first prompt that rows before it, with the same prompt, have too."""
    counts: list[int] = []
    before: frozenset[int | None] = frozenset()  # of the rows so far that have the last prompt
    for fact, shared in zip(facts, num_shared, strict=True):
        is_same = bool(counts) and shared * TOKEN_BYTES == len(fact.first)
        before = before if is_same else frozenset()
        counts.append(len(before & fact.first_kinds))
        before = before | fact.first_kinds if fact.first == fact.last else fact.last_kinds
    return counts


def _after_neighbour(facts: PartitionFacts, num_shared: int, num_repeated: int, model: CostModel) -> PartitionFacts:
    num_tokens = len(facts.first) // TOKEN_BYTES
    alone, after = model.costs(np.array([num_tokens, num_tokens]), np.array([0, num_shared]))
    return replace(
        facts,
        num_unique_tokens=facts.num_unique_tokens - num_shared,
        num_duplicates=facts.num_duplicates + num_repeated,
        num_prefix_groups=facts.num_prefix_groups - (num_shared * 2 > num_tokens),
        cost=facts.cost + float(after - alone),
    )


def _number(pieces: Sequence[Sequence[Unit]]) -> list[Unit]:
    """Units of consecutive pieces, each numbered from 0, as those of the whole."""
    units: list[Unit] = []
    for piece in pieces:
        index, start = len(units), units[-1].end if units else 0
        units += [replace(u, index=u.index + index, start=u.start + start, end=u.end + start) for u in piece]
    return units


def _summarise(ordered: _Ordered, num_units: int) -> PlanSummary:
    facts = ordered.facts
    longest = max(facts, key=lambda fact: fact.longest_prompt, default=None)  # the first in planned order
    return PlanSummary(
        num_rows=sum(fact.num_rows for fact in facts) + ordered.num_failed,
        num_failed=ordered.num_failed,
        num_truncated=sum(run.num_truncated for run in ordered.runs),
        num_prompt_tokens=sum(fact.num_prompt_tokens for fact in facts),
        num_unique_tokens=sum(fact.num_unique_tokens for fact in facts),
        num_duplicates=sum(fact.num_duplicates for fact in facts),
        num_prefix_groups=sum(fact.num_prefix_groups for fact in facts),
        longest_prompt=longest.longest_prompt if longest else 0,
        longest_row_id=longest.longest_row_id if longest else None,
        num_units=num_units,
    )
