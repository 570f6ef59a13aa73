"""The runs in a folder of run directories, as far as their files tell."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchpaged.errors import RunDirectoryError
from batchpaged.past.stored_runs import drawn_runs
from batchpaged.run.directory import RunDirectory
from batchpaged.run.store import Store, is_on_store, open_store


@dataclass(frozen=True)
class PastRun:
    path: Path
    info: dict[str, Any]  # run.json
    report: dict[str, Any] | None  # report.json; None: not finished, or not to be read

    @property
    def id(self) -> str:
        return self.info["run_id"]

    @property
    def name(self) -> str:
        return self.info["name"]

    @property
    def limit(self) -> int | None:
        """How many rows it was limited to; runs of rows in memory have no input section."""
        return (self.info["identity"]["pipeline"].get("input") or {}).get("limit")

    @property
    def finished_at(self) -> str | None:
        """ISO-8601, UTC."""
        return None if self.report is None else self.report["run"]["finished_at"]

    @property
    def last_seen(self) -> str:
        """When it finished, else when it began: what runs are sorted by."""
        return self.finished_at or self.info["started_at"]

    @property
    def is_good(self) -> bool:
        """Finished, and every gate passed."""
        return self.report is not None and all(gate["passed"] for gate in self.report["gates"])


def find_runs(folder: Path | str | Store, name: str | None = None) -> list[PastRun]:
    """Runs whose directories lie in the folder itself, the oldest first; of one `name`, if given.

    Links are passed over: `latest -> 2026-03-01` is not one more run. Raises RunDirectoryError if there is no folder.
    Of runs on a store the `path` is good for its name only.
    """
    if isinstance(folder, Store) or is_on_store(folder):
        with drawn_runs(folder if isinstance(folder, Store) else open_store(str(folder))) as drawing:
            return _find_runs(drawing, name)
    return _find_runs(Path(folder), name)


def _find_runs(folder: Path, name: str | None) -> list[PastRun]:
    try:
        paths = sorted(path for path in folder.iterdir() if is_run_directory(path))
    except OSError as error:
        raise RunDirectoryError(f"{folder}: {error.strerror}; give a folder that holds run directories") from error
    runs = [run for run in map(_read_run, paths) if run is not None and name in (None, run.name)]
    return sorted(runs, key=lambda run: (run.last_seen, run.id))


def is_run_directory(path: Path) -> bool:
    """By its files, which only a run makes together; what a deletion left half done, under a name with a dot, is none."""
    return (
        not path.name.startswith(".")
        and not path.is_symlink()
        and (path / "run.json").is_file()
        and (path / "lock").exists()
    )


def _read_run(path: Path) -> PastRun | None:
    """None where run.json is not what a run writes."""
    try:
        info = RunDirectory(path).info()
        if not all(isinstance(info[key], str) for key in ("run_id", "name", "fingerprint", "started_at")):
            return None
        info["identity"]["pipeline"].get("input")
    except (RunDirectoryError, KeyError, AttributeError, TypeError):
        return None
    return PastRun(path, info, _report_or_none(path / "report.json"))


def _report_or_none(path: Path) -> dict[str, Any] | None:
    try:
        return read_report(path)
    except RunDirectoryError:
        return None


def read_report(path: Path) -> dict[str, Any]:
    """A report.json. Raises RunDirectoryError if it is not there, or not a report."""
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise RunDirectoryError(f"{path.parent} has no report.json: the run is not finished, or it is no run directory") from error
    except (OSError, ValueError) as error:
        raise RunDirectoryError(f"{path} cannot be read as a report ({type(error).__name__})") from error
    if not _is_report(report):
        raise RunDirectoryError(f"{path} is not the report of a run")
    return report


def _is_report(report: Any) -> bool:
    try:
        texts = [report["run"][key] for key in ("id", "name", "started_at", "finished_at")]
        gates = [gate["passed"] for gate in report["gates"]]
        return all(isinstance(text, str) for text in texts) and isinstance(gates, list) and bool(report["rows"])
    except (KeyError, TypeError, IndexError):
        return False
