"""The first signal asks a run to stop, the second one stops it."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

AGAIN_SECONDS = 0.05  # what a signal came in between is over by then, or it comes once more

_IMPORTS = "<frozen importlib"  # its functions take the lock of all imports, and release it in a `finally` that begins later
_LOCKING = (threading.Condition.__enter__.__code__, threading.Condition.__exit__.__code__)


class StopRequest:
    """Set by the first signal while units are computed: those that run are finished, and no more are begun.

    Everywhere else, and the second time, a signal is a KeyboardInterrupt: nothing there is worth waiting for, since
    each stage begins again where it was.
    """

    def __init__(self) -> None:
        self.is_set = False
        self._is_heeded = False
        self._raised_for = signal.SIGINT
        self._again: threading.Timer | None = None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """While the block runs, Ctrl-C and SIGTERM, which are the same here, come to `on_signal`. In the main thread only."""
        # Where a shell has started us with Ctrl-C ignored, it stays ignored.
        signals = [s for s in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(s) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self.on_signal) for number in signals}
        before_hook, sys.unraisablehook = sys.unraisablehook, self._on_dropped
        try:
            yield
        finally:
            if self._again is not None:
                self._again.cancel()
            sys.unraisablehook = before_hook
            for number, handler in before.items():
                signal.signal(number, handler)

    def on_signal(self, signum: int, frame: FrameType | None) -> None:
        """A signal's handler, so it does next to nothing."""
        if self._is_heeded and not self.is_set:
            self.is_set = True
        elif _may_keep_a_lock(frame):
            self._send_again(signum)
        else:
            self._raised_for = signum
            raise KeyboardInterrupt

    @contextmanager
    def heeded(self) -> Iterator[None]:
        """While the block runs, somebody looks at `is_set` and stops in good order."""
        self._is_heeded = True
        try:
            yield
        finally:
            self._is_heeded = False

    def _on_dropped(self, unraisable: sys.UnraisableHookArgs) -> None:
        """Python drops what is raised where an object is deleted, or in a callback of the garbage collector."""
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            self._send_again(self._raised_for)
        else:
            sys.__unraisablehook__(unraisable)

    def _send_again(self, signum: int) -> None:
        self._again = threading.Timer(AGAIN_SECONDS, os.kill, (os.getpid(), signum))
        self._again.daemon = True
        self._again.start()


def _may_keep_a_lock(frame: FrameType | None) -> bool:
    """Whether what is raised at this point could leave a lock taken for good, and with it the other threads waiting."""
    return frame is not None and (frame.f_code.co_filename.startswith(_IMPORTS) or frame.f_code in _LOCKING)


def waiting(num_units: int, stages: Sequence[str]) -> str:
    """What a run that is asked to stop leaves for its next start: more units of a stage, and the stages after it, by name."""
    if not stages:
        return f"{num_units} more wait for the next start"
    units = f"{num_units} more, and " if num_units else ""
    is_one = len(stages) == 1 and not num_units
    return f"{units}stage{'s' * (len(stages) > 1)} {', '.join(stages)} wait{'s' * is_one} for the next start"
