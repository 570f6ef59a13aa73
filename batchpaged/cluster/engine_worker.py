"""The engine of a worker process: one thread that steps it, fed with units by tasks."""

import queue
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from batchpaged.clock import now
from batchpaged.cluster.engine_counts import EngineCounts
from batchpaged.cluster.open_units import OpenUnits, Tag
from batchpaged.cluster.serving import Sample, Serving, UnitOutcome, UnitRow
from batchpaged.cluster.unit_ranges import OpenRows
from batchpaged.cluster.watchdog import Watchdog
from batchpaged.engine.engine import Completion, Engine
from batchpaged.engine.release import release_memory
from batchpaged.errors import RowError, UnfinishedError

SAMPLE_SECONDS = 1.0  # between two samples of the timeline
# Between those, word goes out whenever so much of the batch has ended, so that more units are sent in time.
REPORTS_PER_BATCH = 8
REPORT_SECONDS = 0.1  # but no more often than this
NUM_STALLED_SHOWN = 3  # rows that a message names


@dataclass
class EngineWorker:
    """Runs units back to back: the rows of the next unit join the batch while the last ones of this unit finish.

    `build` makes the engine inside the worker's thread. The thread
    ends at `stop` or at the first error; every future that waits, and every later one, then raises the reason.
    """

    build: Callable[[], Engine]
    serving: Serving  # the stage it begins with
    name: str
    device: str
    stall_seconds: float | None = None  # without a step, after which the engine is given up; None: never
    loaded: Future = field(default_factory=Future)  # done once the engine is built
    error: BaseException | None = None  # why the thread has ended
    # (unit, rows, next prompt, future); Serving: what follows is of that stage; None: stop.
    _inbox: queue.SimpleQueue = field(default_factory=queue.SimpleQueue)
    _lock: threading.Lock = field(default_factory=threading.Lock)  # nothing enters the inbox of a thread that has ended
    _units: OpenUnits = field(default_factory=OpenUnits)
    _samples: list[Sample] = field(default_factory=list)
    _counts: EngineCounts = field(default_factory=EngineCounts)
    _num_rows_done: int = 0
    _num_rows_told: int = 0  # of these, as last emitted
    _told_at: float = 0.0  # time.monotonic()
    _load_seconds: float = 0.0  # none in the stages after the first
    _asked_to_serve: str = ""  # the sitting of the stage that what is in the inbox last is of

    def start(self) -> "EngineWorker":
        self.started_at, self._asked_to_serve = now(), self.serving.sitting
        self._thread = threading.Thread(target=self._run, name="batchpaged-engine", daemon=True)
        self._watchdog = Watchdog(self.stall_seconds or 1.0, self._progress, self._give_up)
        if self.stall_seconds is not None:
            self._watchdog.start()
        self._thread.start()
        return self

    @property
    def is_alive(self) -> bool:
        """Whether its thread is there."""
        return self._thread.is_alive()

    @property
    def session(self) -> str:
        """Names this engine, among all that the worker has had."""
        return f"{self.name}@{self.started_at:.3f}"

    def serve(self, serving: Serving) -> None:
        """What is submitted from now on is of this stage. The units of the one before have to be done."""
        with self._lock:
            if self._asked_to_serve != serving.sitting:
                self._asked_to_serve = serving.sitting
                self._inbox.put(serving)

    def submit(
        self, rows: list[UnitRow], next_prompt: list[int] | None = None, unit: int = 0
    ) -> "Future[UnitOutcome]":
        """Queue a unit's rows, in planned order. The future raises what ended the engine, should it end.

        `unit`: its number in the plan, for messages. `next_prompt`: token ids of the row that comes after them in planned order, in the unit that may be next,
        if its adapter is that of the last row.
        """
        future: Future[UnitOutcome] = Future()
        with self._lock:
            if self.error is None:
                self._inbox.put((unit, rows, next_prompt, future))
                return future
        future.set_exception(self.error)
        return future

    def stop(self) -> None:
        """Let the thread end after its present step; the engine, its model and its KV cache go with it."""
        self._inbox.put(None)

    def join(self, seconds: float | None = None) -> None:
        """Wait until the thread has ended."""
        self._thread.join(seconds)

    # --- everything below runs in the engine's thread ---

    def _run(self) -> None:
        try:
            started = time.perf_counter()
            self._engine = self.build()
            self._load_seconds = time.perf_counter() - started
            self.loaded.set_result(None)
            with closing(self._engine):
                while True:
                    self._serve()
        except BaseException as error:  # noqa: BLE001 - handed to those who wait, whatever it is
            self._end(error)
            traceback.clear_frames(error.__traceback__)  # who keeps the error shall not keep the engine
        release_memory()

    def _serve(self) -> None:
        self._take_units(wait=not self._engine.has_unfinished)
        next_sample = time.monotonic()
        while self._engine.has_unfinished:
            for completion in self._engine.step():
                self._finish_row(completion.tag, completion.error or completion)
            if time.monotonic() >= next_sample:
                next_sample = time.monotonic() + SAMPLE_SECONDS
                self._sample()
            elif self._has_news():
                self._tell(self._measure())
            self._take_units(wait=False)
        self._engine.scheduler.check()
        self._sample()

    def _take_units(self, wait: bool) -> None:
        while True:
            try:
                item = self._inbox.get(block=wait)
            except queue.Empty:
                return
            if item is None:
                raise UnfinishedError("the engine was stopped before this unit was done")
            if isinstance(item, Serving):
                self._begin_stage(item)
                continue
            self._open_unit(*item)
            wait = False

    def _begin_stage(self, serving: Serving) -> None:
        """The engine, its model and its cache stay; what is counted begins anew, under the name of a new session."""
        self.serving, self.started_at, self._load_seconds = serving, now(), 0.0
        self._engine.begin_stage()
        self._counts.begin_stage(self._engine)
        self._num_rows_done = self._num_rows_told = 0
        self._samples = []

    def _open_unit(self, name: int, rows: list[UnitRow], next_prompt: list[int] | None, future: Future) -> None:
        for tag in self._units.open(name, rows, future, self.serving.fans_out):
            self._add_row(rows[tag[1]], tag)
        self._engine.scheduler.expect(next_prompt)
        self._close_units()  # one without rows

    def _add_row(self, row: UnitRow, tag: Tag) -> None:
        try:
            self._engine.add(row.token_ids, self.serving.params, row.row_id, tag, row.grammar, row.adapter)
        except RowError as error:
            self._finish_row(tag, str(error))

    def _finish_row(self, tag: Tag, outcome: Completion | str) -> None:
        num_rows = self._units.finish(tag, outcome)
        self._num_rows_done += num_rows
        if isinstance(outcome, Completion):
            self._counts.add_fanned_out(outcome, num_rows - 1)
        self._close_units()

    def _close_units(self) -> None:
        for unit in self._units.take_done():
            self._sample()
            samples, self._samples = self._samples, []
            facts = {**self._facts(), "started_at": unit.started_at, "finished_at": now(), "timeline": samples}
            facts["num_deduplicated"] = unit.num_deduplicated
            unit.future.set_result(UnitOutcome(unit.rows, facts))

    def _facts(self) -> dict[str, Any]:
        return {
            "worker": self.name,
            "session": self.session,
            "device": self.device,
            "load_seconds": self._load_seconds,
            **self._counts.facts(self._engine),
        }

    def _sample(self) -> None:
        sample = self._measure()
        self._samples.append(sample)
        self._tell(sample)

    def _measure(self) -> Sample:
        return {"time": now(), "worker": self.name, **self._counts.sample(self._engine)}

    def _has_news(self) -> bool:
        num_ended = self._num_rows_done - self._num_rows_told
        is_time = time.monotonic() >= self._told_at + REPORT_SECONDS
        return is_time and num_ended * REPORTS_PER_BATCH >= max(1, len(self._engine.scheduler.running))

    def _tell(self, sample: Sample) -> None:
        self._num_rows_told, self._told_at = self._num_rows_done, time.monotonic()
        open_rows = self._open_rows()
        self.serving.emit(
            {
                **sample,
                "session": self.session,
                "num_rows_done": self._num_rows_done,
                "num_begun": open_rows.num_begun,
                "num_ended": open_rows.num_ended,
            }
        )

    def _open_rows(self) -> OpenRows:
        num_rows, num_open = self._units.num_rows, self._units.num_open
        num_waiting = min(len(self._engine.scheduler.waiting), num_open)  # a row may have several sequences
        return OpenRows(num_rows - num_waiting, num_rows - num_open)

    # --- and these in the watchdog's ---

    def _progress(self) -> tuple[int, ...] | None:
        """What changes with every step; None without work."""
        engine = None if self._units.is_empty else self._engine
        return None if engine is None else (self._units.num_opened, engine.num_steps, engine.num_out_of_memory)

    def _give_up(self, seconds: float) -> None:
        """Those who wait are told; the thread is left to itself, and ends with its process."""
        tags = self._engine.open_tags()
        shown = ", ".join(self._units.name_row(tag) for tag in tags[:NUM_STALLED_SHOWN])
        more = f" and {len(tags) - NUM_STALLED_SHOWN} more" if len(tags) > NUM_STALLED_SHOWN else ""
        self._end(
            UnfinishedError(
                f"inference: the engine of worker {self.name} has not finished a step for {seconds:.0f} s, "
                f"at {shown}{more}. Run the same command again; where steps may take so long, "
                "raise engine.stall_seconds"
            )
        )

    # --- in either ---

    def _end(self, error: BaseException) -> None:
        self._watchdog.stop()
        with self._lock:
            if self.error is not None:
                return
            self.error = error
            waiting = [self.loaded, *self._units.futures, *self._drain_inbox()]
        self._units.clear()
        self._engine = None
        for future in waiting:
            if not future.done():
                future.set_exception(error)

    def _drain_inbox(self) -> Iterator[Future]:
        while not self._inbox.empty():  # nobody else takes from it, and the lock keeps others from adding
            item = self._inbox.get_nowait()
            if isinstance(item, tuple):
                yield item[-1]
