"""The plan on disk: plan/ holds the prompts in planned order, one row group per unit; plan.json the summary and the units.

plan.json is written last and by rename: a plan is whole or not there. A file of plan/ is named after its first unit, so a
unit is found without plan.json.
"""

import json
import os
import shutil
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import accumulate
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from batchpaged.atomic import write_text
from batchpaged.errors import UnfinishedError
from batchpaged.planning.keys import as_prompts
from batchpaged.planning.summary import PlanSummary
from batchpaged.planning.units import Unit

PROMPTS_SCHEMA = pa.schema(
    [
        ("ordinal", pa.int64()),  # place in the input
        ("row_id", pa.string()),
        ("token_ids", pa.list_(pa.int32())),  # null if failed
        ("num_truncated", pa.int32()),
        ("status", pa.string()),  # ok | truncated | failed
        ("error", pa.string()),
        ("adapter", pa.int16()),  # number of the LoRA adapter it is computed with; null: none
        ("grammar", pa.string()),  # that this row's completion must follow; null: that of the run, if it has one
    ]
)
# Token ids as int32, little-endian, in one byte string: Parquet takes a third of the time that it does for a list.
PLAN_SCHEMA = pa.schema([f if f.name != "token_ids" else f.with_type(pa.large_binary()) for f in PROMPTS_SCHEMA])
_NAME = "from-unit-{:07}.parquet"


@contextmanager
def explaining(path: Path) -> Iterator[None]:
    """Whatever a damaged file makes a reader raise becomes an UnfinishedError that names it."""
    try:
        yield
    except (pa.ArrowException, ValueError, KeyError, TypeError, IndexError) as error:
        raise UnfinishedError(
            f"{path} is damaged ({type(error).__name__}); start over with --fresh"
        ) from error


def open_part(path: Path) -> pq.ParquetWriter:
    """A file of the plan, to which units are written as row groups of PLAN_SCHEMA."""
    columns = ["row_id", "status", "error", "grammar"]
    return pq.ParquetWriter(path, PLAN_SCHEMA, compression="lz4", use_dictionary=columns, write_statistics=False)


def publish_plan(folder: Path, parts: Sequence[tuple[Path, int]], summary: PlanSummary, units: Sequence[Unit]) -> None:
    """Make `parts` (each with its number of units, all in one folder beside plan/) the plan of the run in `folder`.

    It counts once plan.json is there. The parts' folder becomes plan/, in place of what an interrupted attempt left.
    """
    target = folder / "plan"
    ends = list(accumulate(num_units for _, num_units in parts))
    for (path, num_units), end in zip(parts, ends, strict=True):
        os.replace(path, path.with_name(_NAME.format(end - num_units)))
    shutil.rmtree(target, ignore_errors=True)
    os.replace(parts[0][0].parent, target) if parts else target.mkdir()
    write_text(folder / "plan.json", json.dumps(_as_json(summary, units), separators=(",", ":")))


def _as_json(summary: PlanSummary, units: Sequence[Unit]) -> dict[str, object]:
    """Columns instead of objects: a large plan has tens of thousands of units."""
    columns = {
        "num_rows": [unit.end - unit.start for unit in units],
        "cost": [unit.cost for unit in units],
        "num_prefilled": [unit.num_prefilled for unit in units],
        "num_shared": [unit.num_shared for unit in units],
    }
    return {"summary": asdict(summary), "units": columns}


def has_plan(folder: Path) -> bool:
    return (folder / "plan.json").exists() and (folder / "plan").exists()


def read_plan(folder: Path) -> tuple[PlanSummary, list[Unit]]:
    """Raises UnfinishedError if the plan cannot be read."""
    path = folder / "plan.json"
    with explaining(path):
        content = json.loads(path.read_text())
        columns = content["units"]
        ends = list(accumulate(columns["num_rows"]))
        facts = zip(ends, *(columns[key] for key in ("num_rows", "cost", "num_prefilled", "num_shared")), strict=True)
        units = [Unit(i, end - num_rows, end, *rest) for i, (end, num_rows, *rest) in enumerate(facts)]
        return PlanSummary(**content["summary"]), units


def read_unit(folder: Path, unit: int) -> pa.Table:
    """The rows of one unit, in planned order: PROMPTS_SCHEMA. Raises UnfinishedError if the plan cannot be read."""
    path, row_group = _find_unit(folder / "plan", unit)
    with explaining(path), pq.ParquetFile(path) as file:
        rows = file.read_row_group(row_group).combine_chunks()
        token_ids = as_prompts(rows["token_ids"].combine_chunks())
        return rows.set_column(rows.schema.get_field_index("token_ids"), "token_ids", token_ids).cast(PROMPTS_SCHEMA)


def _find_unit(folder: Path, unit: int) -> tuple[Path, int]:
    names = sorted(path.name for path in folder.glob("from-unit-*.parquet"))
    place = bisect_right(names, _NAME.format(unit)) - 1
    if place < 0:
        raise UnfinishedError(f"{folder} has lost the file of unit {unit}; start over with --fresh")
    return folder / names[place], unit - int(names[place].removeprefix("from-unit-").removesuffix(".parquet"))


def token_lists(rows: pa.Table) -> list[list[int] | None]:
    """Token ids per row; None where a row has failed."""
    return rows["token_ids"].to_pylist()
