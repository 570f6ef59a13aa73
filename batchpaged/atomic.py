"""Files that are either there, whole, or not there."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path to write; at the end of the block it is synced and takes the place of `path` in one step.

    A reader, or a crash, never meets half a file. If the block raises, `path` stays as it was.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(path.parent)


def write_text(path: Path, text: str, mode: int | None = None) -> None:
    """Replaces `path` in one step; `mode`: who may read it, if it is not for the umask to say."""
    with replacing(path) as temporary:
        with open(temporary, "x", encoding="utf-8", newline="\n") as file:
            file.write(text)
        if mode is not None:
            temporary.chmod(mode)


def _sync_folder(folder: Path) -> None:
    """The rename itself reaches the disk; folders cannot be opened on Windows, which needs no such step."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
