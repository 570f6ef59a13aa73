"""Units enter a worker's engine in the order in which they were sent."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

# How long a unit waits for the one sent before it, which may have gone to another worker: order saves work, no more.
PATIENCE_SECONDS = 2.0


class Turns:
    """Tasks that start together would race, and a unit that overtakes another cannot share what they have in common."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._sitting: str | None = None
        self._units: set[int] = set()  # of the sitting, that have had their turn

    @contextmanager
    def turn(self, sitting: str, unit: int, after: int | None) -> Iterator[None]:
        """One at a time, and after the unit `after`, if that one comes here."""
        with self._condition:
            if sitting != self._sitting:
                self._sitting, self._units = sitting, set()
            self._condition.wait_for(lambda: after is None or after in self._units, PATIENCE_SECONDS)
            try:
                yield
            finally:
                self._units.add(unit)
                self._condition.notify_all()
