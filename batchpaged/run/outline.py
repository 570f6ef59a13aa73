"""Run directories as they are looked at from outside, wherever they are. Nothing is written there."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from batchpaged.errors import RunDirectoryError
from batchpaged.run.directory import RunDirectory
from batchpaged.run.store import Store, StoreError, is_on_store, name_of, open_store
from batchpaged.run.store_lock import read_owner
from batchpaged.run.stored import STAGES, check_no_strangers, working_copy

_CONTENTS = ("report.json", "run.json", "plan.json")  # of other files names and times are enough


@contextmanager
def outline(run_dir: Path | str) -> Iterator[tuple[RunDirectory, Mapping[str, Any] | None]]:
    """The directory, or in its place a folder with the names and times of what a store has; and the client at work there.

    Raises RunDirectoryError if the store cannot be read.
    """
    if not is_on_store(run_dir):
        directory = RunDirectory(run_dir)
        yield directory, directory.owner()
        return
    store = open_store(str(run_dir))
    with TemporaryDirectory(prefix="batchpaged-outline-") as folder:
        try:
            owner = read_owner(store)
            if not _draw(store, Path(folder)):
                raise RunDirectoryError(f"{store.name} is not a run directory: it has no run.json")
        except StoreError as error:
            raise RunDirectoryError(str(error)) from error
        yield RunDirectory(folder), owner


def _draw(store: Store, folder: Path) -> bool:
    """-> is there a run?"""
    files = store.files()
    for name, info in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        store.get(name, path) if _is_read(name) else path.touch()
        os.utime(path, ns=(info.mtime_ns or 0, info.mtime_ns or 0))
    return "run.json" in files


def _is_read(name: str) -> bool:
    """Of the run, or of a stage."""
    *folders, last = name.split("/")
    return last in _CONTENTS and (not folders or (len(folders) == 2 and folders[0] == STAGES))


def has_finished_units(run_dir: Path | str) -> bool:
    """Of a run directory on a store its working copy says it, which has whatever this machine knows of."""
    path = working_copy(name_of(run_dir)) if is_on_store(run_dir) else Path(run_dir)
    return any(next(path.glob(place), None) for place in ("units/unit-*.parquet", "stages/*/units/unit-*.parquet"))


def check_free(run_dir: Path | str) -> None:
    """Raise RunDirectoryError if other files are there, or another process is at work."""
    if not is_on_store(run_dir):
        RunDirectory(run_dir).check_free()
        return
    store = open_store(str(run_dir))
    try:
        check_no_strangers(store.name, store.files())
        owner = read_owner(store)
    except StoreError as error:
        raise RunDirectoryError(str(error)) from error
    if owner is not None:
        raise RunDirectoryError(f"{store.name} has a lock; if its owner is alive, wait for it: `batchpaged status` names it")
