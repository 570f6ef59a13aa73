"""What the log says of a finished unit: who computed it, and which of its rows failed."""

from __future__ import annotations

from typing import Any

from batchpaged.run.directory import RunDirectory
from batchpaged.run.failed_rows import read_failed
from batchpaged.run.progress import ProgressReporter
from batchpaged.run.unit_file import DamagedUnit

MOST_ROWS = 100  # failed ones of a unit; the output has them all


def log_unit(reporter: ProgressReporter, directory: RunDirectory, facts: dict[str, Any]) -> None:
    """`facts`: of the unit, as its task returned them."""
    unit, num_failed = facts["unit"], facts["num_rows"] - facts["completions"]["num_rows"]
    seconds = facts["finished_at"] - facts["started_at"] if "started_at" in facts else None
    reporter.log(
        "unit_done",
        unit=unit,
        worker=facts.get("worker"),
        num_rows=facts["num_rows"],
        num_failed=num_failed,
        num_completion_tokens=facts["completions"]["num_tokens"],
        seconds=seconds,
    )
    if num_failed:
        for row in _first_failed(directory, unit):
            reporter.log("row_failed", unit=unit, row=row["row_id"], error=row["error"])


def _first_failed(directory: RunDirectory, unit: int) -> list[dict[str, Any]]:
    """None of them where this machine does not see the file yet, as on NFS: a log is no reason to stop."""
    try:
        return read_failed(directory.unit_file(unit), ["row_id", "error"]).slice(0, MOST_ROWS).to_pylist()
    except (OSError, DamagedUnit):
        return []
