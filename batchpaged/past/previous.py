"""The previous good run: what gates with `previous` compare with.

It is chosen when a run is first reported, and kept in previous.json: the same command gives the same verdict for as
long as the run directory is there, whatever becomes of the other run.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from batchpaged.atomic import write_text
from batchpaged.config import Pipeline
from batchpaged.errors import ConfigError, RunDirectoryError
from batchpaged.past.runs import PastRun, find_runs, read_report
from batchpaged.report.gates import parse_gate
from batchpaged.past.sides import read_side
from batchpaged.run.directory import RunDirectory
from batchpaged.run.store import Store, is_on_store, open_store

AUTO, NONE = "auto", "none"


def check_previous(pipeline: Pipeline) -> None:
    """Raises ConfigError if the run that `previous` names has no report."""
    if pipeline.previous in (AUTO, NONE):
        return
    try:
        _read_named(pipeline.previous)
    except RunDirectoryError as error:
        raise ConfigError(f"previous: {error}") from error


def previous_report(pipeline: Pipeline, directory: RunDirectory, location: Path | str) -> dict[str, Any] | None:
    """None if no gate asks for it, or there is none. Writes previous.json; the run's output has to be there.

    `location` of the run directory, as it was given: on a store, `directory` is its working copy.
    """
    if pipeline.previous == NONE or not any(parse_gate(gate).is_relative for gate in pipeline.gates):
        return None
    if pipeline.previous != AUTO:
        return _read_named(pipeline.previous)
    kept = directory.path / "previous.json"
    if not kept.exists():
        found = _last_good(directory, _folder_of_runs(directory, location))
        if found is None:
            return None
        write_text(kept, json.dumps({key: value for key, value in found.report.items() if key != "workers"}, indent=1))
    return read_report(kept)


def _read_named(place: str) -> dict[str, Any]:
    if is_on_store(place):
        return read_side(place).report
    path = Path(place)
    if not path.exists():
        raise RunDirectoryError(f"{place}: no such file or folder; give a run directory or its report.json")
    return read_report(path / "report.json" if path.is_dir() else path)


def _folder_of_runs(directory: RunDirectory, location: Path | str) -> Path | Store:
    return open_store(str(location)).parent if is_on_store(location) else directory.path.resolve().parent


def _last_good(directory: RunDirectory, folder: Path | Store) -> PastRun | None:
    """Of the directories beside this one: the last good run of that name and limit that was over when this one ended.

    A try with `--limit` says nothing about whole runs, so it is no previous run of one.
    """
    own = PastRun(directory.path, directory.info(), None)
    runs = [
        run
        for run in find_runs(folder, own.name)
        if run.is_good and run.id != own.id and run.limit == own.limit and run.finished_at <= directory.finished_at()
    ]
    return runs[-1] if runs else None
