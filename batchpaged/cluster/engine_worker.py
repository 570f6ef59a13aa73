"""The engine of a worker process: one thread that steps it, fed with units by tasks."""

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from batchpaged.engine.engine import Completion, Engine
from batchpaged.engine.sampling_params import SamplingParams
from batchpaged.errors import RowError

SAMPLE_SECONDS = 1.0  # between two samples of the timeline

Sample = dict[str, float | int | str]


@dataclass(frozen=True)
class UnitRow:
    token_ids: list[int]
    row_id: str


@dataclass(frozen=True)
class UnitOutcome:
    """A computed unit, and the engine's counters since its start as they stood when the unit was done."""

    rows: list[Completion | str]  # in the order given; a string says why the engine refused the row
    facts: dict[str, Any]  # JSON-able


@dataclass
class _OpenUnit:
    future: Future
    started_at: float  # time.time()
    rows: list[Completion | str | None]
    num_open: int = 0


@dataclass
class EngineWorker:
    """Runs units back to back: the rows of the next unit join the batch while the last ones of this unit finish.

    `build` makes the engine inside the worker's thread; `emit` is called with each sample of the timeline.
    """

    build: Callable[[], Engine]
    params: SamplingParams
    name: str
    device: str
    emit: Callable[[Sample], None]
    error: BaseException | None = None  # why the thread has ended
    _inbox: queue.SimpleQueue = field(default_factory=queue.SimpleQueue)
    _units: dict[int, _OpenUnit] = field(default_factory=dict)
    _samples: list[Sample] = field(default_factory=list)
    _num_rows_done: int = 0
    _num_units: int = 0
    _load_seconds: float = 0.0

    def start(self) -> "EngineWorker":
        self.started_at = time.time()
        threading.Thread(target=self._run, name="batchpaged-engine", daemon=True).start()
        return self

    def submit(self, rows: list[UnitRow]) -> "Future[UnitOutcome]":
        """Queue a unit's rows, in planned order. The future raises what ended the engine, should it end."""
        future: Future[UnitOutcome] = Future()
        self._inbox.put((rows, future))
        if self.error is not None:  # the thread may have ended before it saw this unit
            self._fail_all(self.error)
        return future

    # --- everything below runs in the engine's thread ---

    def _run(self) -> None:
        try:
            started = time.perf_counter()
            self._engine = self.build()
            self._load_seconds = time.perf_counter() - started
            while True:
                self._serve()
        except BaseException as error:  # noqa: BLE001 - handed to those who wait, whatever it is
            self.error = error
            self._fail_all(error)

    def _serve(self) -> None:
        self._take_units(wait=not self._engine.has_unfinished)
        next_sample = time.monotonic()
        while self._engine.has_unfinished:
            for completion in self._engine.step():
                self._finish_row(completion.tag, completion)
            if time.monotonic() >= next_sample:
                next_sample = time.monotonic() + SAMPLE_SECONDS
                self._sample()
            self._take_units(wait=False)
        self._engine.scheduler.check()
        self._sample()

    def _take_units(self, wait: bool) -> None:
        while True:
            try:
                rows, future = self._inbox.get(block=wait)
            except queue.Empty:
                return
            self._open_unit(rows, future)
            wait = False

    def _open_unit(self, rows: list[UnitRow], future: Future) -> None:
        index, self._num_units = self._num_units, self._num_units + 1
        unit = self._units[index] = _OpenUnit(future, time.time(), [None] * len(rows), len(rows))
        for place, row in enumerate(rows):
            try:
                self._engine.add(row.token_ids, self.params, row.row_id, (index, place))
            except RowError as error:
                self._finish_row((index, place), str(error))
        if unit.num_open == 0 and not future.done():
            self._close_unit(index)

    def _finish_row(self, tag: tuple[int, int], outcome: Completion | str) -> None:
        index, place = tag
        unit = self._units[index]
        unit.rows[place] = outcome
        unit.num_open -= 1
        self._num_rows_done += 1
        if unit.num_open == 0:
            self._close_unit(index)

    def _close_unit(self, index: int) -> None:
        unit = self._units.pop(index)
        self._sample()
        samples, self._samples = self._samples, []
        facts = {**self._facts(), "started_at": unit.started_at, "finished_at": time.time(), "timeline": samples}
        unit.future.set_result(UnitOutcome(unit.rows, facts))

    def _facts(self) -> dict[str, Any]:
        engine, counts = self._engine, self._engine.scheduler.counts
        return {
            "worker": self.name,
            "session": f"{self.name}@{self.started_at:.3f}",
            "device": self.device,
            "load_seconds": self._load_seconds,
            "num_blocks": engine.pool.num_blocks,
            "block_size": engine.pool.block_size,
            "num_steps": engine.num_steps,
            "busy_seconds": engine.busy_seconds,
            "num_prefilled_tokens": counts.prefilled,
            "num_cached_tokens": counts.cached,
            "num_recomputed_tokens": counts.recomputed,
            "num_completion_tokens": counts.generated,
            "num_preemptions": engine.scheduler.num_preemptions,
        }

    def _sample(self) -> None:
        engine, counts = self._engine, self._engine.scheduler.counts
        sample: Sample = {
            "time": time.time(),
            "worker": self.name,
            "num_prefilled_tokens": counts.prefilled,
            "num_cached_tokens": counts.cached,
            "num_completion_tokens": counts.generated,
            "cache_usage": engine.pool.num_referenced / engine.pool.num_blocks,
            "num_running": len(engine.scheduler.running),
            "num_waiting": len(engine.scheduler.waiting),
            "num_preemptions": engine.scheduler.num_preemptions,
        }
        self._samples.append(sample)
        self.emit({**sample, "num_rows_done": self._num_rows_done})

    def _fail_all(self, error: BaseException) -> None:
        futures = [unit.future for unit in self._units.values()]
        while not self._inbox.empty():
            futures.append(self._inbox.get_nowait()[1])
        for future in futures:
            if not future.done():
                future.set_exception(error)
