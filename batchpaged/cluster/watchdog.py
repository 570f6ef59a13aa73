"""Notices an engine that no longer gets on: a step that does not come back, or sequences that wait for ever."""

import threading
import time
from collections.abc import Callable, Hashable

LOOKS = 20  # within the time that is borne


class Watchdog:
    """A thread that looks at `state` now and then, and calls `on_stall` once if it stays the same for too long."""

    def __init__(
        self, seconds: float, state: Callable[[], Hashable | None], on_stall: Callable[[float], None]
    ) -> None:
        """`state`: what changes as work gets on; None while there is no work. `on_stall` gets the seconds passed."""
        self._seconds = seconds
        self._state = state
        self._on_stall = on_stall
        self._stopped = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="batchpaged-watchdog", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        seen, since = None, time.monotonic()
        while not self._stopped.wait(self._seconds / LOOKS):
            state, now = self._state(), time.monotonic()
            if state is None or state != seen:
                seen, since = state, now
            elif now - since >= self._seconds:
                self._on_stall(now - since)
                return
