"""batchpaged's own cache folder: each entry is made once, whole or not at all.

An entry is built in a temporary sibling folder and renamed when it is complete, under a lock that the operating system
releases when its owner dies. What a killed process left behind is removed by the next one that holds the lock.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import filelock
import platformdirs

from batchpaged.errors import ModelError
from batchpaged.models.sources import Note

CACHE_VARIABLE = "BATCHPAGED_CACHE"


def cache_dir() -> Path:
    """The user's cache folder for batchpaged; the environment variable BATCHPAGED_CACHE overrides it."""
    chosen = os.environ.get(CACHE_VARIABLE)
    return Path(chosen).expanduser() if chosen else Path(platformdirs.user_cache_dir("batchpaged"))


def make_once(target: Path, build: Callable[[Path], Path], *, num_bytes_needed: int, note: Note) -> Path:
    """`target`, built first if it is not there.

    `build` gets an empty scratch folder and returns the folder inside it that becomes `target`. Raises ModelError
    where the cache cannot be written; what `build` raises passes through and leaves nothing behind.
    """
    if target.is_dir():
        return target
    with _write_errors(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target, note):
            if not target.is_dir():
                _remove_stale(target)
                _check_free_space(target.parent, num_bytes_needed)
                _build_and_publish(target, build)
    return target


def _build_and_publish(target: Path, build: Callable[[Path], Path]) -> None:
    scratch = Path(tempfile.mkdtemp(prefix=_scratch_prefix(target), dir=target.parent))
    try:
        _publish(build(scratch), target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _scratch_prefix(target: Path) -> str:
    return f"{target.name}.tmp-"


def _remove_stale(target: Path) -> None:
    """Called with the lock held: a scratch folder then belongs to a process that died."""
    for left_over in target.parent.glob(f"{_scratch_prefix(target)}*"):
        shutil.rmtree(left_over, ignore_errors=True)


def _publish(folder: Path, target: Path) -> None:
    """On disk first, then under its name: a power cut must not leave a complete-looking folder of empty files."""
    for file in folder.iterdir():
        file.chmod(0o644)  # safetensors writes files that only their owner can read
        _fsync(file)
    _fsync(folder)
    folder.rename(target)
    _fsync(target.parent)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _locked(target: Path, note: Note) -> Iterator[None]:
    lock = filelock.FileLock(target.parent / f"{target.name}.lock")
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        note(f"waiting for another process that is making {target}")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _check_free_space(folder: Path, num_bytes_needed: int) -> None:
    num_bytes_free = shutil.disk_usage(folder).free
    if num_bytes_free < num_bytes_needed:
        raise ModelError(
            f"{folder}: {num_bytes_free / 1e9:.1f} GB free, {num_bytes_needed / 1e9:.1f} GB needed; "
            f"make room, or set {CACHE_VARIABLE} to a folder on another disk"
        )


@contextlib.contextmanager
def _write_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ModelError(
            f"{folder}: the model cannot be stored ({error.strerror or error}); "
            f"set {CACHE_VARIABLE} to a folder that can be written"
        ) from error
