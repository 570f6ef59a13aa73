"""Which engine a worker process has: one at a time, since each takes what memory there is."""

import atexit
import multiprocessing
import os
import threading
from collections.abc import Callable

from batchpaged.cluster.engine_worker import EngineWorker
from batchpaged.errors import UnfinishedError

MOST_SECONDS = 600.0  # for a dropped engine's present step; one that does not come back shall not stop the next run


class CurrentEngine:
    """The engine of the sitting that asked last. May be used from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._current: tuple[str, EngineWorker] | None = None  # (sitting, its engine)
        self._ended: set[str] = set()  # sittings that are over
        self._stopping: list[EngineWorker] = []  # their threads may still be alive
        atexit.register(self._leave)

    def of(self, sitting: str, make: Callable[[], EngineWorker]) -> EngineWorker:
        """The sitting's engine, made if it is not there; one that an earlier sitting left behind is freed first.

        Raises UnfinishedError for a sitting that is over: on a cluster that outlives its clients, tasks do as well.
        """
        with self._lock:
            if sitting in self._ended:
                raise UnfinishedError("this sitting of the run is over")
            if self._current is None or self._current[0] != sitting:
                self._drop()
                self._wait_for_memory()
                self._current = sitting, make()
            return self._current[1]

    def end(self, sitting: str) -> None:
        """Free the sitting's engine, if it has one here. Does not wait for its present step."""
        with self._lock:
            self._ended.add(sitting)
            if self._current is not None and self._current[0] == sitting:
                self._drop()

    def _drop(self) -> None:
        if self._current is not None:
            sitting, engine = self._current
            self._current = None
            self._ended.add(sitting)
            self._stopping.append(engine)
            engine.stop()

    def _wait_for_memory(self) -> None:
        """Until dropped engines are gone: the next one looks how much memory is free."""
        while self._stopping:
            self._stopping.pop().join(MOST_SECONDS)

    def _leave(self) -> None:
        """A worker process that ends while its engine loads or takes a step goes at once.

        Python would end the engine's thread in the middle of torch's code, which aborts the process with a message of C++'s.
        """
        engines = [*self._stopping, *([] if self._current is None else [self._current[1]])]
        if multiprocessing.parent_process() is not None and any(engine.is_alive for engine in engines):
            os._exit(0)
