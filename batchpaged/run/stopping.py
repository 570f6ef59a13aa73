"""The first signal asks a run to stop, the second one stops it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class StopRequest:
    """Set by the first signal while units are computed: those that run are finished, and no more are begun.

    Everywhere else, and the second time, a signal is a KeyboardInterrupt: nothing there is worth waiting for, since
    each stage begins again where it was.
    """

    def __init__(self) -> None:
        self.is_set = False
        self._is_heeded = False
        self._has_raised = False

    def on_signal(self, signum: int, frame: object) -> None:
        """A signal's handler, so it does next to nothing."""
        if not self._is_heeded or self.is_set:
            self._has_raised = True
            raise KeyboardInterrupt
        self.is_set = True

    @contextmanager
    def heeded(self) -> Iterator[None]:
        """While the block runs, somebody looks at `is_set` and stops in good order."""
        if self._has_raised:  # and Python dropped it, as it does in the garbage collector's callbacks
            raise KeyboardInterrupt
        self._is_heeded = True
        try:
            yield
        finally:
            self._is_heeded = False
