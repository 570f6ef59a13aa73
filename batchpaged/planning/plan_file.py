"""The plan on disk: plan.parquet holds the prompts in planned order, one row group per unit; plan.json the summary.

plan.json is written last and by rename: a plan is whole or not there.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from batchpaged.atomic import replacing, write_text
from batchpaged.errors import UnfinishedError
from batchpaged.planning.order import Order, plan_order
from batchpaged.planning.summary import PlanSummary, num_duplicates, num_prefix_groups, num_unique_tokens
from batchpaged.planning.units import Unit, cut_units

PROMPTS_SCHEMA = pa.schema(
    [
        ("ordinal", pa.int64()),  # place in the input
        ("row_id", pa.string()),
        ("token_ids", pa.list_(pa.int32())),  # null if failed
        ("num_truncated", pa.int32()),
        ("status", pa.string()),  # ok | truncated | failed
        ("error", pa.string()),
    ]
)


def read_prompts(files: Sequence[Path]) -> pa.Table:
    """All tokenised prompts, in input order. Raises UnfinishedError naming a file that cannot be read."""
    return pa.concat_tables([_read_prompts(path) for path in files])


def _read_prompts(path: Path) -> pa.Table:
    with _explaining(path), pq.ParquetFile(path) as file:
        return file.read().select(PROMPTS_SCHEMA.names).cast(PROMPTS_SCHEMA)


@contextmanager
def _explaining(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, ValueError, KeyError, TypeError, IndexError) as error:
        raise UnfinishedError(
            f"{path} is damaged ({type(error).__name__}); start over with --fresh"
        ) from error


def plan_table(table: pa.Table, max_tokens: int, num_workers: int) -> tuple[PlanSummary, pa.Table, list[Unit]]:
    """Order all prompts (PROMPTS_SCHEMA) and cut them into units; failed rows come last, in units of their own.

    -> summary, all rows in planned order, units over them.
    """
    has_failed = pc.equal(table["status"], "failed")
    runnable, failed = table.filter(pc.invert(has_failed)), table.filter(has_failed)
    order = plan_order(_one_chunk(runnable["token_ids"]))
    units = cut_units(order, max_tokens, num_workers)
    units += _failed_units(failed.num_rows, len(order), len(units))
    rows = pa.concat_tables([runnable.take(pa.array(order.rows)), failed])
    return _summarise(table, order, rows, len(units)), rows, units


def _one_chunk(column: pa.ChunkedArray) -> pa.ListArray:
    return column.combine_chunks() if column.num_chunks else pa.array([], column.type)


def _failed_units(num_failed: int, start: int, index: int) -> list[Unit]:
    step = 10_000
    bounds = [*range(0, num_failed, step), num_failed]
    return [Unit(index + i, start + a, start + b) for i, (a, b) in enumerate(zip(bounds[:-1], bounds[1:], strict=True))]


def _summarise(table: pa.Table, order: Order, rows: pa.Table, num_units: int) -> PlanSummary:
    longest = int(order.num_tokens.argmax()) if len(order) else None
    return PlanSummary(
        num_rows=table.num_rows,
        num_failed=table.num_rows - len(order),
        num_truncated=pc.sum(pc.equal(table["status"], "truncated")).as_py() or 0,
        num_prompt_tokens=int(order.num_tokens.sum()),
        num_unique_tokens=num_unique_tokens(order),
        num_duplicates=num_duplicates(order),
        num_prefix_groups=num_prefix_groups(order),
        longest_prompt=0 if longest is None else int(order.num_tokens[longest]),
        longest_row_id=None if longest is None else rows["row_id"][longest].as_py(),
        num_units=num_units,
    )


def write_plan(folder: Path, summary: PlanSummary, rows: pa.Table, units: list[Unit]) -> None:
    """Publish a plan in `folder`; it counts once plan.json is there."""
    with (
        replacing(folder / "plan.parquet") as temporary,
        pq.ParquetWriter(temporary, PROMPTS_SCHEMA, compression="zstd") as writer,
    ):
        for unit in units:
            size = unit.end - unit.start
            writer.write_table(rows.slice(unit.start, size), row_group_size=size)
    units_json = [[unit.start, unit.end] for unit in units]
    write_text(folder / "plan.json", json.dumps({"summary": asdict(summary), "units": units_json}, indent=1))


def has_plan(folder: Path) -> bool:
    return (folder / "plan.json").exists() and (folder / "plan.parquet").exists()


def read_plan(folder: Path) -> tuple[PlanSummary, list[Unit]]:
    """Raises UnfinishedError if the plan cannot be read."""
    path = folder / "plan.json"
    with _explaining(path):
        content = json.loads(path.read_text())
        units = [Unit(i, start, end) for i, (start, end) in enumerate(content["units"])]
        return PlanSummary(**content["summary"]), units


def read_unit(folder: Path, unit: int) -> pa.Table:
    """The rows of one unit, in planned order: PROMPTS_SCHEMA. Raises UnfinishedError if the plan cannot be read."""
    path = folder / "plan.parquet"
    with _explaining(path), pq.ParquetFile(path) as file:
        return file.read_row_group(unit)


def token_lists(rows: pa.Table) -> list[list[int] | None]:
    """Token ids per row; None where a row has failed."""
    return rows["token_ids"].to_pylist()
