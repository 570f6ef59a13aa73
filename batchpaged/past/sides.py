"""What a comparison is given: a run directory, its output folder, or a report.json."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from batchpaged.dataset.locations import Location, resolve
from batchpaged.errors import RunDirectoryError
from batchpaged.evaluation.evaluator import NUM_EVALUATED
from batchpaged.past.runs import read_report
from batchpaged.past.stored_runs import drawn_files
from batchpaged.run.directory import RunDirectory
from batchpaged.run.store import Store, is_on_store, open_store


@dataclass(frozen=True)
class Side:
    name: str  # as given; a URL without credentials
    report: dict[str, Any] | None  # None: an output folder on its own
    info: dict[str, Any] | None  # run.json; None where there is none
    output: Location | None  # None: a report on its own
    scores: Location | None = None  # of each row, by the run's own metrics; the file may be missing

    @property
    def id_column(self) -> str | None:
        """Column of row ids; None: a row's position is its id."""
        section = (self.info or {"identity": {"pipeline": {}}})["identity"]["pipeline"].get("input") or {}
        return section.get("id_column")

    @property
    def references(self) -> str | None:
        return (self.report or {}).get("references")

    @property
    def evaluation(self) -> dict[str, float | None]:
        """Metric -> mean, as reported."""
        reported = (self.report or {}).get("evaluation") or {}
        return {name: value for name, value in reported.items() if name != NUM_EVALUATED}


def read_side(path: Path | str) -> Side:
    """Raises RunDirectoryError if it is none of the three."""
    return _read_on_store(open_store(str(path))) if is_on_store(path) else _read(Path(path))


def _read_on_store(place: Store) -> Side:
    """A file or an output folder belongs to the run directory it lies in."""
    own_name = PurePosixPath(place.folder.path).name
    is_inside = own_name == "output" or own_name.endswith(".json")
    root = place.parent if is_inside else place
    with drawn_files(root) as path:
        side = _read(path / own_name if is_inside else path)
        output, scores = (at and root.folder.at(root.folder.path + _below(path, at.path)) for at in (side.output, side.scores))
    return replace(side, name=place.name, output=output, scores=scores)


def _below(folder: Path, path: str) -> str:
    """`/output`, or nothing where the two are the same."""
    return os.path.realpath(path).removeprefix(os.path.realpath(folder))


def _read(path: Path) -> Side:
    if path.is_file():
        return _of_run(path, path.parent) if _is_run(path.parent) else Side(str(path), read_report(path), None, None)
    if not path.is_dir():
        raise RunDirectoryError(f"{path}: no such file or folder; give a run directory, its output folder or report.json")
    if _is_run(path):
        return _of_run(path, path)
    if path.name == "output" and _is_run(path.resolve().parent):
        return _of_run(path, path.resolve().parent)
    if any(path.glob("*.parquet")):
        return Side(str(path), None, None, resolve(str(path)))
    raise RunDirectoryError(f"{path} is neither a run directory nor a folder with output (*.parquet)")


def _is_run(path: Path) -> bool:
    return (path / "run.json").is_file()


def _of_run(given: Path, path: Path) -> Side:
    directory = RunDirectory(path)
    has_output = (directory.output / "_SUCCESS").exists()
    output = resolve(str(directory.output)) if has_output else None
    return Side(str(given), read_report(directory.report), directory.info(), output, resolve(str(directory.scores)))
