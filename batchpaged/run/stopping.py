"""The first signal asks a run to stop, the second one stops it."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

AGAIN_SECONDS = 0.05  # the garbage collector is through by then, or the signal comes once more


class StopRequest:
    """Set by the first signal while units are computed: those that run are finished, and no more are begun.

    Everywhere else, and the second time, a signal is a KeyboardInterrupt: nothing there is worth waiting for, since
    each stage begins again where it was.
    """

    def __init__(self) -> None:
        self.is_set = False
        self._is_heeded = False
        self._has_raised = False

    def on_signal(self, signum: int, frame: FrameType | None) -> None:
        """A signal's handler, so it does next to nothing."""
        if not self._is_heeded or self.is_set:
            if _is_in_collector(frame):
                again = threading.Timer(AGAIN_SECONDS, os.kill, (os.getpid(), signum))
                again.daemon = True
                again.start()
                return
            self._has_raised = True
            raise KeyboardInterrupt
        self.is_set = True

    @contextmanager
    def heeded(self) -> Iterator[None]:
        """While the block runs, somebody looks at `is_set` and stops in good order."""
        if self._has_raised:  # and Python dropped it, as it does where an object is deleted
            raise KeyboardInterrupt
        self._is_heeded = True
        try:
            yield
        finally:
            self._is_heeded = False


def _is_in_collector(frame: FrameType | None) -> bool:
    """Python drops what is raised in a callback of the garbage collector, of which Dask has one, and says so on stderr."""
    codes = {getattr(callback, "__code__", None) for callback in gc.callbacks}
    while frame is not None:
        if frame.f_code in codes:
            return True
        frame = frame.f_back
    return False
