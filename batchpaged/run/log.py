"""What happened in a run, one JSON object a line, for programs: log.jsonl, and stderr with `--log-format json`.

Every line has `time` (ISO-8601, UTC, milliseconds), `event`, `run` and `sitting`; lines about units and rows have
`unit` and `row`. No line holds prompt or completion text.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TextIO

from batchpaged.errors import BatchpagedError
from batchpaged.run.progress import Outlet, Pace, Progress, ProgressReporter

_CONTEXT = ("run", "sitting")


class JsonReporter:
    """Progress, notes and events as JSON lines; it falls silent where the stream is gone."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.time) -> None:
        self._outlet, self._clock = Outlet(stream), clock
        self._pace = Pace(clock)
        self._context: dict[str, Any] = dict.fromkeys(_CONTEXT)
        self._is_open = True

    def update(self, progress: Progress) -> None:
        if self._pace.is_due(progress):
            known = {key: value for key, value in asdict(progress).items() if value is not None}
            self.log("progress", counted=known.pop("unit"), **known)  # `unit` is a unit's number in all other lines

    def note(self, message: str) -> None:
        self.log("note", message=message)

    def log(self, event: str, **fields: Any) -> None:
        """`run` and `sitting` given once hold for all later lines."""
        self._context |= {key: fields.pop(key) for key in _CONTEXT if key in fields}
        if self._is_open:
            moment = datetime.fromtimestamp(self._clock(), timezone.utc).isoformat(timespec="milliseconds")
            self._outlet.write(json.dumps({"time": moment, "event": event, **self._context, **fields}) + "\n")
            self._outlet.flush()

    def close(self) -> None:
        self._is_open = False


class Both:
    """Two reporters that are told the same."""

    def __init__(self, *reporters: ProgressReporter) -> None:
        self._reporters = reporters

    def update(self, progress: Progress) -> None:
        for reporter in self._reporters:
            reporter.update(progress)

    def note(self, message: str) -> None:
        for reporter in self._reporters:
            reporter.note(message)

    def log(self, event: str, **fields: Any) -> None:
        for reporter in self._reporters:
            reporter.log(event, **fields)

    def close(self) -> None:
        for reporter in self._reporters:
            reporter.close()


@contextmanager
def logging_to(path: Path, reporter: ProgressReporter) -> Iterator[ProgressReporter]:
    """A reporter that also appends to the file. How the block ends is logged, with the error that ended it."""
    with open(path, "a", encoding="utf-8") as file:
        both = Both(reporter, JsonReporter(file))
        try:
            yield both
        except BaseException as error:  # noqa: BLE001 - told, and raised again
            both.log("run_stopped", error=type(error).__name__, message=_message(error))
            raise


def _message(error: BaseException) -> str | None:
    """Of our own errors only: what other libraries say may quote data."""
    return str(error) if isinstance(error, BatchpagedError) else None
