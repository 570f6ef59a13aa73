"""What a running job tells the terminal: a live line where there is a terminal, plain lines where there is none.

Progress never stops a run: a reporter whose stream is gone falls silent.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, TextIO

Stage = Literal["start", "read", "plan", "load", "infer", "assemble", "report", "simulate"]

FIRST_INTERVAL = 5.0  # seconds between plain lines at the start
LONGEST_INTERVAL = 60.0
GROWTH = 0.02  # of the time so far: a night's log stays some hundred lines


@dataclass(frozen=True)
class Progress:
    """One moment of one stage; the token counts are sums since the run began, as in its report."""

    stage: Stage
    num_done: int  # of `unit`, in this stage
    num_total: int | None = None  # None: not known yet
    unit: str = "rows"  # what is counted: "files", "rows", ...
    num_prefilled_tokens: int = 0
    num_completion_tokens: int = 0
    num_cached_tokens: int = 0
    prefill_tokens_per_s: float | None = None
    decode_tokens_per_s: float | None = None
    hit_rate: float | None = None  # so far, 0 to 1
    seconds_left: float | None = None  # of this stage

    @property
    def is_complete(self) -> bool:
        return self.num_total is not None and self.num_done >= self.num_total


class ProgressReporter(Protocol):
    """Called from one thread, as often as there is news."""

    def update(self, progress: Progress) -> None:
        """Shows where the run stands; a new stage ends the one before."""

    def note(self, message: str) -> None:
        """Shows a line that stays."""

    def log(self, event: str, **fields: object) -> None:
        """A fact for a log, JSON-able; a display shows nothing of it."""

    def close(self) -> None:
        """Ends the display; may be called more than once, nothing is shown afterwards."""


class NullReporter:
    """Says nothing: for programs."""

    def update(self, progress: Progress) -> None:
        pass

    def note(self, message: str) -> None:
        pass

    def log(self, event: str, **fields: object) -> None:
        pass

    def close(self) -> None:
        pass


class Outlet:
    """A stream, until a write fails because the reader or the terminal is gone; then it takes and forgets."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_gone = False

    def write(self, text: str) -> int:
        self._attempt(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._attempt(self._stream.flush)

    def _attempt(self, action: Callable[[], object]) -> None:
        try:
            if not self._is_gone:
                action()
        except (OSError, ValueError):  # ValueError: the stream was closed
            self._is_gone = True

    def __getattr__(self, name: str) -> object:
        """isatty, encoding, fileno: what rich asks a stream."""
        return getattr(self._stream, name)


class Pace:
    """When a line of a log is due: as a stage begins and as it is done, in between one each few seconds at most."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._started = clock, clock()
        self._shown: Progress | None = None  # the last one that was due
        self._next_line = 0.0  # seconds since the start

    def elapsed(self) -> float:
        return self._clock() - self._started

    def is_due(self, progress: Progress) -> bool:
        """If so, it counts as written."""
        is_new = self._shown is None or progress.stage != self._shown.stage
        is_end = progress.is_complete and (is_new or not self._shown.is_complete)
        if not (is_new or is_end or self.elapsed() >= self._next_line):
            return False
        self._shown = progress
        self._next_line = self.elapsed() + min(LONGEST_INTERVAL, max(FIRST_INTERVAL, GROWTH * self.elapsed()))
        return True


class PlainReporter(NullReporter):
    """Lines for logs that people read."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._outlet = Outlet(stream)
        self._is_open = True
        self._pace = Pace(clock)

    def update(self, progress: Progress) -> None:
        if self._pace.is_due(progress):
            self._write(f"{progress.stage}: {', '.join(describe(progress))}")

    def note(self, message: str) -> None:
        self._write(message)

    def close(self) -> None:
        self._is_open = False

    def _write(self, line: str) -> None:
        if self._is_open:
            self._outlet.write(f"[{duration(self._pace.elapsed()):>8}] {line}\n")
            self._outlet.flush()


class RichReporter(NullReporter):
    """One live line with a bar; each finished stage leaves one line behind."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        from rich.console import Console

        self._console = Console(file=Outlet(stream))
        self._clock = clock
        self._last: Progress | None = None
        self._began = 0.0  # when the current stage did
        self._bar = _live_bar(self._console)
        self._task = self._bar.add_task("", total=None, text="starting")
        self._is_open = True
        self._bar.start()

    def update(self, progress: Progress) -> None:
        if self._is_open and (self._last is None or self._last.stage != progress.stage):
            self._leave_line()
            self._began = self._clock()
            self._bar.reset(self._task)
        self._last = progress
        self._bar.update(
            self._task,
            description=progress.stage,
            completed=progress.num_done,
            total=progress.num_total,
            text=" · ".join(describe(progress)),
        )

    def note(self, message: str) -> None:
        if self._is_open:
            self._print(message)

    def close(self) -> None:
        """Takes the live line away; what the stage came to stays."""
        if self._is_open:
            self._leave_line()
            self._is_open = False
            self._bar.stop()

    def _leave_line(self) -> None:
        if self._last is not None:
            parts = [*describe(self._last, is_over=True), duration(self._clock() - self._began)]
            self._print(f"{self._last.stage:<8}  {' · '.join(parts)}", style="dim")

    def _print(self, line: str, style: str = "") -> None:
        from rich.text import Text

        self._console.print(Text(line, style=style))


def _live_bar(console: object) -> object:
    from rich.progress import BarColumn, SpinnerColumn, TextColumn
    from rich.progress import Progress as Bars
    from rich.table import Column

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description:<8}", style="bold", markup=False),
        BarColumn(bar_width=16),
        TextColumn("{task.fields[text]}", markup=False, table_column=Column(overflow="fold")),  # wraps if narrow
    )
    return Bars(*columns, console=console, transient=True, refresh_per_second=4)


def describe(progress: Progress, is_over: bool = False) -> list[str]:
    """The parts of a progress line, such as `120/219 rows` and `hit rate 87.1%`; only what is known."""
    total = "" if progress.num_total is None or (is_over and progress.is_complete) else f"/{progress.num_total:,}"
    parts = [f"{progress.num_done:,}{total} {progress.unit}"]
    if progress.prefill_tokens_per_s is not None:
        parts.append(f"prefill {progress.prefill_tokens_per_s:,.0f} tokens/s")
    if progress.decode_tokens_per_s is not None:
        parts.append(f"decode {progress.decode_tokens_per_s:,.0f} tokens/s")
    if progress.hit_rate is not None:
        parts.append(f"hit rate {progress.hit_rate:.1%}")
    if progress.seconds_left is not None and not is_over and not progress.is_complete:
        parts.append(f"{duration(progress.seconds_left)} left")
    return parts


def duration(seconds: float) -> str:
    """`42s`, `3m 05s` or `7h 12m`: short enough for a line that changes."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    return f"{whole // 3600}h {whole % 3600 // 60:02d}m"


def make_reporter(stream: TextIO | None) -> ProgressReporter:
    """A live display on a terminal, plain lines on any other stream, nothing without one."""
    if stream is None:
        return NullReporter()
    if _is_terminal(stream) and os.environ.get("TERM") != "dumb":
        return RichReporter(stream)
    return PlainReporter(stream)


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False
