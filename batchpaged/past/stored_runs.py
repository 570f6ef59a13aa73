"""Runs on an object store, drawn as folders on this machine, so that one set of rules reads both.

run.json and report.json are fetched. Of other files, where they are wanted, a drawing has names, sizes and times.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow.fs as pafs

from batchpaged.errors import RunDirectoryError
from batchpaged.run.store import Store, StoreError

FETCHED = ("run.json", "report.json")
_NUM_THREADS = 16  # small files: fetching them is all waiting


@contextmanager
def drawn_runs(folder: Store) -> Iterator[Path]:
    """The runs of a folder by `FETCHED` alone: no listing of all their files."""
    with _drawing(folder) as path:
        names = [f"{run}/{name}" for run in folder.folders() for name in FETCHED]
        _for_each(lambda name: _write(path / name, folder.read(name)), names)
        _add_locks(path)
        yield path


@contextmanager
def drawn_files(folder: Store) -> Iterator[Path]:
    """The folder with all files below it; `FETCHED` are fetched in it and in the folders right below."""
    with _drawing(folder) as path:
        files = folder.files()
        _draw(path, files)
        fetched = [name for name in files if name.count("/") <= 1 and name.split("/")[-1] in FETCHED]
        _for_each(lambda name: _write(path / name, folder.read(name)), fetched)
        _for_each(lambda name: _date(path / name, files[name]), fetched)
        _add_locks(path)
        yield path


@contextmanager
def _drawing(folder: Store) -> Iterator[Path]:
    """Messages name the store; what it refuses is a RunDirectoryError."""
    with TemporaryDirectory(prefix="batchpaged-drawing-") as path:
        try:
            yield Path(path)
        except (StoreError, RunDirectoryError) as error:
            raise RunDirectoryError(str(error).replace(path, folder.name)) from error


def _for_each(function: Callable[[str], None], names: Iterable[str]) -> None:
    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        list(pool.map(function, names))


def _write(path: Path, content: bytes | None) -> None:
    if content is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _draw(folder: Path, files: Mapping[str, pafs.FileInfo]) -> None:
    for name, info in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.truncate(path, info.size)  # takes no room
        _date(path, info)


def _date(path: Path, info: pafs.FileInfo) -> None:
    os.utime(path, ns=(info.mtime_ns or 0, info.mtime_ns or 0))


def _add_locks(folder: Path) -> None:
    """A run directory on a file system is known by it."""
    for path in folder.glob("*/run.json"):
        (path.parent / "lock").touch()
