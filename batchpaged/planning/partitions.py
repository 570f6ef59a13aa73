"""Second pass of planning: partitions, ranges of the planned order over all runs, each small enough for memory.

A splitter is where a partition begins: (key, ordinal). Keys are whole prompts, so that neither a system prompt that all rows
share nor one document that a third of them have makes partitions uneven; the ordinal does the same for equal prompts.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import xxhash

from batchpaged.planning.cost import CostModel
from batchpaged.planning.keys import TOKEN_BYTES, num_common, one_array
from batchpaged.planning.order import Order, order_keys
from batchpaged.planning.sorted_runs import SortedRun, load
from batchpaged.planning.summary import ends_of_equal, num_duplicates, num_prefix_groups, num_unique_tokens

Splitter = tuple[bytes, int]  # key and ordinal of the first row that a partition may have

_MAPPED_RUNS = 16  # at a time: what a search in a run has touched stays in memory as long as its map
_SLACK = 0.1  # of a partition: how far a splitter may move to where less is shared


@dataclass(frozen=True)
class Partition:
    """Where its rows are: between two splitters, in every run."""

    index: int
    runs: tuple[Path, ...]
    start: Splitter | None  # None: from the first row
    end: Splitter | None  # None: to the last row
    order: Path  # what `order_partition` writes


@dataclass(frozen=True)
class PartitionFacts:
    """Of one partition in planned order, its first row taken for one that shares nothing."""

    num_rows: int
    num_prompt_tokens: int
    num_unique_tokens: int
    num_duplicates: int  # rows whose prompt and grammar an earlier row has
    num_prefix_groups: int
    cost: float
    longest_prompt: int  # tokens
    longest_row_id: str | None
    first: bytes  # keys
    last: bytes
    first_kinds: frozenset[int | None] = frozenset()  # grammars, by hash, of the rows with the first key; None: that of the run
    last_kinds: frozenset[int | None] = frozenset()


def choose_splitters(runs: Sequence[SortedRun], num_partitions: int) -> list[Splitter]:
    """At most `num_partitions - 1`, ascending, which make partitions of about even size in memory."""
    if num_partitions < 2:
        return []
    samples = pa.concat_tables(load(run.samples) for run in runs)
    samples = samples.sort_by([("key", "ascending"), ("ordinal", "ascending")]).combine_chunks()
    step = len(samples) / num_partitions
    places = {_cheap_place(samples["key"], round(i * step), int(_SLACK * step)) for i in range(1, num_partitions)}
    return [_splitter(samples, place) for place in sorted(places - {None})]


def _cheap_place(keys: pa.ChunkedArray, place: int, reach: int) -> int | None:
    """Near `place`, the sample that shares least with the one before it; of those the nearest."""
    first, end = max(1, place - reach), min(len(keys), place + reach + 1)
    near = keys.slice(first - 1, max(0, end - first + 1)).to_pylist()
    shared = [(num_common(a, b), abs(first + i - place), first + i) for i, (a, b) in enumerate(pairwise(near))]
    return min(shared)[2] if shared else None


def _splitter(samples: pa.Table, place: int) -> Splitter:
    """Between two samples, where their common prefix ends: rows that share more than it with the second stay together."""
    before, key = samples["key"].slice(place - 1, 2).to_pylist()
    if before == key:
        return key, samples["ordinal"][place].as_py()
    return key[: (num_common(before, key) + 1) * TOKEN_BYTES], -1


def order_partition(partition: Partition, model: CostModel) -> PartitionFacts:
    """Sort a partition and look at its neighbours; the order is written to its file."""
    rows = load_partition(partition)
    order = order_keys(one_array(rows["key"]))
    _save_order(partition.order, order)
    longest = int(order.num_tokens.argmax()) if len(order) else None
    grammars, equal = one_array(rows["grammar"]).take(pa.array(order.rows)), ends_of_equal(order)
    keys = [rows["key"][int(order.rows[i])].as_py() if len(order) else b"" for i in (0, -1)]
    return PartitionFacts(
        num_rows=len(order),
        num_prompt_tokens=int(order.num_tokens.sum()),
        num_unique_tokens=num_unique_tokens(order),
        num_duplicates=num_duplicates(order, grammars),
        num_prefix_groups=num_prefix_groups(order),
        cost=float(model.costs(order.num_tokens, order.num_shared).sum()),
        longest_prompt=0 if longest is None else int(order.num_tokens[longest]),
        longest_row_id=None if longest is None else rows["row_id"][int(order.rows[longest])].as_py(),
        first=keys[0],
        last=keys[1],
        first_kinds=_kinds(grammars, equal[0]),
        last_kinds=_kinds(grammars, equal[1]),
    )


def _kinds(grammars: pa.StringArray, rows: range) -> frozenset[int | None]:
    distinct = grammars.slice(rows.start, len(rows)).unique().to_pylist()
    return frozenset(None if grammar is None else xxhash.xxh3_64_intdigest(grammar.encode()) for grammar in distinct)


def load_partition(partition: Partition) -> pa.Table:
    """Its rows (RUN_SCHEMA) in one chunk, those of each run sorted, runs in input order."""
    runs = partition.runs
    groups = (runs[i : i + _MAPPED_RUNS] for i in range(0, len(runs), _MAPPED_RUNS))
    return _join([_join([_slice_of(path, partition) for path in group]) for group in groups])


def _join(tables: list[pa.Table]) -> pa.Table:
    """A copy in one chunk, so that memory maps behind the tables can go."""
    return pa.concat_tables(tables).combine_chunks() if len(tables) > 1 else tables[0]


def _slice_of(path: Path, partition: Partition) -> pa.Table:
    run = load(path)
    start = _find(run, partition.start) if partition.start else 0
    end = _find(run, partition.end) if partition.end else run.num_rows
    return run.slice(start, end - start)


def _find(run: pa.Table, splitter: Splitter) -> int:
    """Where a sorted run reaches the splitter."""
    keys, ordinals = run["key"], run["ordinal"]
    return bisect_left(range(run.num_rows), splitter, key=lambda i: (keys[i].as_py(), ordinals[i].as_py()))


def _save_order(path: Path, order: Order) -> None:
    arrays = {"rows": order.rows, "num_tokens": order.num_tokens, "num_shared": order.num_shared}
    table = pa.table({name: pa.array(values.astype(np.int32)) for name, values in arrays.items()})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


def load_order(partition: Partition, num_shared_of_first: int) -> Order:
    """As `order_partition` found it, but with what the first row shares with the last row of the partition before."""
    table = load(partition.order)
    rows, num_tokens, num_shared = (column.to_numpy().astype(np.int64) for column in table.columns)
    num_shared[:1] = num_shared_of_first
    return Order(rows, num_tokens, num_shared)
