"""Third pass of planning: partitions, whose order is known, are cut into units and written to the plan's files."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from batchpaged.atomic import replacing
from batchpaged.planning.cost import CostModel
from batchpaged.planning.keys import as_little_endian, one_array, unmarked
from batchpaged.planning.partitions import Partition, load_order, load_partition
from batchpaged.planning.plan_file import PLAN_SCHEMA, open_part
from batchpaged.planning.sorted_runs import SortedRun, load
from batchpaged.planning.units import Unit, UnitSize, cut_slice

FAILED_UNIT_ROWS = 10_000
_GATHERED_ROWS = 2048  # at a time: as many as a large unit has, or memory would grow


def cut_partition(partition: Partition, num_shared: int, size: UnitSize, model: CostModel) -> list[Unit]:
    """Its units, numbered from 0. `num_shared`: of its first row with the last row of the partition before."""
    return cut_slice(load_order(partition, num_shared), model, size)


def write_partition(
    partition: Partition, num_shared: int, size: UnitSize, model: CostModel, target: Path
) -> list[Unit]:
    """The same, written to `target`."""
    order = load_order(partition, num_shared)
    units = cut_slice(order, model, size)
    rows = load_partition(partition)
    _write(target, _in_planned_order(rows, order.rows, units))
    return units


def _in_planned_order(rows: pa.Table, order: np.ndarray, units: Sequence[Unit]) -> Iterator[pa.Table]:
    """The rows of each unit, gathered for many at a time: units of a small data set have few rows."""
    for group in _groups(units):
        start = group[0].start
        gathered = _plan_rows(rows.take(pa.array(order[start : group[-1].end])))
        yield from (gathered.slice(unit.start - start, unit.end - unit.start) for unit in group)


def _groups(units: Sequence[Unit]) -> Iterator[Sequence[Unit]]:
    """Consecutive units of _GATHERED_ROWS together at most; a larger one stands alone."""
    first = 0
    for i, unit in enumerate(units):
        if i > first and unit.end - units[first].start > _GATHERED_ROWS:
            yield units[first:i]
            first = i
    if units:
        yield units[first:]


def _plan_rows(rows: pa.Table) -> pa.Table:
    token_ids = as_little_endian(unmarked(one_array(rows["key"]), one_array(rows["adapter"])))
    return rows.append_column("token_ids", token_ids).select(PLAN_SCHEMA.names)


def failed_units(num_failed: int) -> list[Unit]:
    """Rows without a prompt cost nothing and share nothing."""
    starts = range(0, num_failed, FAILED_UNIT_ROWS)
    return [Unit(i, start, min(start + FAILED_UNIT_ROWS, num_failed), 0.0, 0, 0) for i, start in enumerate(starts)]


def write_failed(runs: Sequence[SortedRun], target: Path) -> None:
    """The rows of `failed_units`, in input order, written to `target`."""
    _write(target, _rechunk(_failed_rows(runs)))


def _failed_rows(runs: Sequence[SortedRun]) -> Iterator[pa.Table]:
    for run in runs:
        if run.num_failed:
            rows = load(run.failed)
            index = rows.schema.get_field_index("token_ids")
            yield rows.set_column(index, PLAN_SCHEMA.field("token_ids"), pa.nulls(len(rows), pa.large_binary()))


def _rechunk(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """The same rows in tables of FAILED_UNIT_ROWS, the last one shorter."""
    pending = PLAN_SCHEMA.empty_table()
    for table in tables:
        pending = pa.concat_tables([pending, table])
        while len(pending) >= FAILED_UNIT_ROWS:
            yield pending.slice(0, FAILED_UNIT_ROWS)
            pending = pending.slice(FAILED_UNIT_ROWS)
    if len(pending):
        yield pending


def _write(target: Path, row_groups: Iterator[pa.Table]) -> None:
    with replacing(target) as temporary, open_part(temporary) as writer:
        for rows in row_groups:
            writer.write_table(rows, row_group_size=len(rows))
