"""The runs of a folder over time, one flat record each: for a table, a page, or another program."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from batchpaged.atomic import write_text
from batchpaged.dataset.locations import mask
from batchpaged.errors import RunDirectoryError
from batchpaged.evaluation.evaluator import NUM_EVALUATED
from batchpaged.past.runs import PastRun, find_runs
from batchpaged.report.gates import find_figure
from batchpaged.report.history_page import history_html
from batchpaged.run.store import is_on_store

FIGURES = {
    "rows": "rows.total",
    "failed_rows": "rows.failed",
    "prefix_cache_hit_rate": "prefix_cache_hit_rate",
    "prefix_cache_hit_rate_ceiling": "prefix_cache_hit_rate_ceiling",
    "reuse_efficiency": "reuse_efficiency",
    "rows_per_s": "throughput.rows_per_s",
    "completion_tokens_per_s": "throughput.completion_tokens_per_s",
    "infer_seconds": "time.infer",
    "total_seconds": "time.total",
}


def read_history(folder: Path | str, name: str | None = None, last: int | None = None) -> list[dict[str, Any]]:
    """A record for each run, the oldest first; of one `name`, the `last` ones, if given. Raises RunDirectoryError.

    `state` is good (finished, all gates passed), failed (a gate failed) or unfinished; figures of the latter are None.
    """
    runs = find_runs(folder, name)
    if not runs:
        of_name = "" if name is None else f" of a run called {name!r}"
        raise RunDirectoryError(f"{mask(str(folder))} holds no run directories{of_name}; give the folder in which they lie")
    return [_record(run) for run in runs[-last if last else 0 :]]


def _record(run: PastRun) -> dict[str, Any]:
    report = run.report or {}
    gates = report.get("gates", ())
    evaluation = report.get("evaluation") or {}
    return {
        "run": run.path.name,
        "id": run.id,
        "name": run.name,
        "state": "unfinished" if run.report is None else "good" if run.is_good else "failed",
        "started_at": run.info["started_at"],
        "finished_at": run.finished_at,
        "model": report.get("run", {}).get("model"),
        "num_gates": len(gates),
        "failed_gates": [gate["gate"] for gate in gates if not gate["passed"]],
        "evaluation": {key: value for key, value in evaluation.items() if key != NUM_EVALUATED},
        **{key: find_figure(figure, report) for key, figure in FIGURES.items()},
    }


def write_history_page(records: Sequence[dict[str, Any]], folder: Path | str, path: Path) -> None:
    """The page, with links to the runs' own reports; no browser follows one to a store. Raises RunDirectoryError if it cannot
    be written."""
    links = {} if is_on_store(folder) else _links(records, Path(folder), path)
    try:
        write_text(path, history_html(records, links))
    except OSError as error:
        raise RunDirectoryError(f"{path} cannot be written ({error.strerror or error})") from error


def _links(records: Sequence[dict[str, Any]], folder: Path, page: Path) -> dict[str, str]:
    return {
        record["run"]: quote(os.path.relpath(folder / record["run"] / "report.html", page.parent))
        for record in records
        if (folder / record["run"] / "report.html").is_file()
    }


def metric_names(records: Sequence[dict[str, Any]]) -> list[str]:
    """Of all records, in the order in which they first come."""
    return list(dict.fromkeys(name for record in records for name in record["evaluation"]))


def to_csv(records: Sequence[dict[str, Any]]) -> str:
    """A line per run, metrics as columns, an empty cell for what is not known; RFC 4180."""
    metrics = metric_names(records)
    columns = [key for key in records[0] if key != "evaluation"] + metrics
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore")
    writer.writeheader()
    for record in records:
        writer.writerow({**record, **record["evaluation"], "failed_gates": "; ".join(record["failed_gates"])})
    return text.getvalue()
