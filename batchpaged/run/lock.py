"""Who may write to a run directory: the process that holds its lock, which the system releases however that process ends."""

import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import filelock

from batchpaged.atomic import write_text
from batchpaged.clock import utc_now
from batchpaged.errors import RunDirectoryError
from batchpaged.run.progress import duration


class RunLock:
    """Of the run directory at `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def owner(self) -> dict[str, Any] | None:
        """Process that runs it now ({pid, host, started_at}); None if there is none, or if we may not know."""
        if not (self.path / "lock").exists():
            return None
        try:
            with filelock.FileLock(self.path / "lock", timeout=0):
                return None
        except filelock.Timeout:
            return self._read_owner()
        except OSError:
            return None

    def _read_owner(self) -> dict[str, Any]:
        try:
            return json.loads((self.path / "owner.json").read_text())
        except (OSError, ValueError):
            return {"pid": None, "host": None, "started_at": None}

    @contextmanager
    def hold(self) -> Iterator[None]:
        """While a run goes on.

        Raises RunDirectoryError if another process holds it, or if nothing can be written here.
        """
        with self._acquire():
            owner = {"pid": os.getpid(), "host": socket.gethostname(), "started_at": utc_now()}
            with refusing(self.path):
                write_text(self.path / "owner.json", json.dumps(owner))
            yield

    def claim(self) -> AbstractContextManager:
        """The lock, of a directory that is there, for work on it that is no run. Raises RunDirectoryError if it is held."""
        return self._acquire()

    def _acquire(self) -> AbstractContextManager:
        try:
            with refusing(self.path):
                self.path.mkdir(parents=True, exist_ok=True)
                return filelock.FileLock(self.path / "lock", timeout=0).acquire()
        except filelock.Timeout as error:
            raise RunDirectoryError(self._in_use(self._read_owner())) from error

    def check_free(self) -> None:
        """Raise RunDirectoryError if another process is at work. Writes nothing."""
        owner = self.owner()
        if owner is not None:
            raise RunDirectoryError(self._in_use(owner))

    def _in_use(self, owner: Mapping[str, Any]) -> str:
        return (
            f"{self.path} is in use by process {owner['pid']} on {owner['host']} since {owner['started_at']}"
            f"{_age(owner['started_at'])}; wait for it, or give another --run-dir"
        )


@contextmanager
def refusing(path: Path) -> Iterator[None]:
    """Where nothing can be written: RunDirectoryError."""
    try:
        yield
    except filelock.Timeout:  # an OSError as well
        raise
    except OSError as error:
        raise RunDirectoryError(f"{path}: nothing can be written there ({error.strerror or error})") from error


def _age(started_at: str | None) -> str:
    if started_at is None:
        return ""
    seconds = time.time() - datetime.fromisoformat(started_at).timestamp()
    return f" ({duration(seconds)})"
