"""Shows that a long step goes on: a bar on a terminal, else a plain line now and then."""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn

from batchpaged.models.sources import Note

SECONDS_BETWEEN_LINES = 10.0
SECONDS_BETWEEN_FRAMES = 0.25

Measure = Callable[[], int]  # bytes done so far


@contextlib.contextmanager
def activity(label: str, note: Note, *, num_bytes: int | None = None, measure: Measure | None = None) -> Iterator[None]:
    """Shows `label` while the block runs, and how far `measure` is on its way to `num_bytes` where both are given."""
    show = _bar if sys.stderr.isatty() else _lines
    with show(label, note, num_bytes, measure):
        yield


@contextlib.contextmanager
def _bar(label: str, note: Note, num_bytes: int | None, measure: Measure | None) -> Iterator[None]:
    columns: list[ProgressColumn] = [TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()]
    if num_bytes is not None:
        columns.insert(2, DownloadColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(label, total=num_bytes)
        with _every(SECONDS_BETWEEN_FRAMES, lambda: progress.update(task, completed=measure() if measure else 0)):
            yield
    note(f"{label}: done")


@contextlib.contextmanager
def _lines(label: str, note: Note, num_bytes: int | None, measure: Measure | None) -> Iterator[None]:
    note(label if num_bytes is None else f"{label} ({megabytes(num_bytes)})")

    def still_going() -> None:
        note(f"{label}: {megabytes(measure())} so far" if measure else f"{label}: still going")

    with _every(SECONDS_BETWEEN_LINES, still_going):
        yield


@contextlib.contextmanager
def _every(seconds: float, do: Callable[[], None]) -> Iterator[None]:
    """Calls `do` from a thread of its own until the block ends."""
    is_over = threading.Event()

    def tick() -> None:
        while not is_over.wait(seconds):
            do()

    thread = threading.Thread(target=tick, name="batchpaged-activity", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.0f} MB"


def folder_bytes(folder: Path) -> int:
    """Bytes of all files below `folder`; files come and go while a download writes there."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.lstat().st_size if path.is_file() and not path.is_symlink() else 0
    return total
