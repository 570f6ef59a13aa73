"""The failed rows of a run directory: which of them can be computed again, and why they failed."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from batchpaged.report.failures import count_failures
from batchpaged.run.directory import RunDirectory
from batchpaged.run.unit_file import DamagedUnit, check_unit, read_unit_facts

_FAILED = pc.field("status") == "failed"


@dataclass(frozen=True)
class FailedRows:
    """Of finished units."""

    units: tuple[int, ...] = ()  # units with rows that have a prompt and failed all the same
    num_retried: int = 0  # those rows
    num_without_prompt: int = 0  # rows that would fail again


def find_failed_rows(directory: RunDirectory, num_units: int) -> FailedRows:
    units, num_retried, num_without_prompt = [], 0, 0
    for unit in filter(directory.is_unit_done, range(num_units)):
        failed = read_failed(directory.unit_file(unit), ["prompt_tokens"])
        num_here = len(failed) - failed["prompt_tokens"].null_count
        units += [unit] if num_here else []
        num_retried += num_here
        num_without_prompt += len(failed) - num_here
    return FailedRows(tuple(units), num_retried, num_without_prompt)


def read_failed(path: Path, columns: Sequence[str]) -> pa.Table:
    try:
        return pq.read_table(path, columns=list(columns), filters=_FAILED, partitioning=None)
    except pa.ArrowException as error:
        raise DamagedUnit(f"{path} is damaged ({type(error).__name__}); delete it and run the same command again") from error


def read_kept(path: Path) -> tuple[dict[int, dict[str, Any]], list[dict[str, Any]]]:
    """Of a unit that was set aside: the rows that did not fail, by ordinal, and the facts of those who computed them.

    Nothing of a file that is damaged: then all of its rows are computed again.
    """
    try:
        facts = read_unit_facts(path)
        check_unit(path)
        rows = pq.read_table(path, filters=~_FAILED, partitioning=None).to_pylist()
    except (FileNotFoundError, DamagedUnit, pa.ArrowException):
        return {}, []
    return {row["ordinal"]: row for row in rows}, all_facts([facts])


def all_facts(units: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A unit whose failed rows were computed again has the facts of each time, the last ones last."""
    return [
        {key: value for key, value in facts.items() if key != "earlier"}
        for unit in units
        for facts in (*unit.get("earlier", ()), unit)
    ]


def most_frequent_reasons(directory: RunDirectory, num_reasons: int) -> list[str]:
    """`12 rows: prompt.user, line 1: question is null`, of the prompts that could not be made and of finished units."""
    columns = ["status", "error"]
    prompts = [read_failed(path, columns) for path in sorted(directory.prompts.glob("rows-*.parquet"))]
    units = [read_failed(path, [*columns, "prompt_tokens"]) for path in sorted(directory.units.glob("unit-*.parquet"))]
    refused = [unit.filter(pc.is_valid(unit["prompt_tokens"])).select(columns) for unit in units]
    return frequent_reasons(pa.concat_tables([*prompts, *refused]), num_reasons)


def frequent_reasons(failed: pa.Table, num_reasons: int) -> list[str]:
    """The same of rows with status and error."""
    counts = count_failures(failed)
    return [f"{number} row{'s' * (number > 1)}: {reason}" for reason, number in list(counts.items())[:num_reasons]]
