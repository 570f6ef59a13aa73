"""Files that are either there, whole, or not there."""

from __future__ import annotations

import os
import uuid
from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Replaces `path` in one step, so that a reader, or a crash, never meets half a file."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with open(temporary, "x", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """The rename itself reaches the disk; folders cannot be opened on Windows, which needs no such step."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
