"""Inference: units go to workers, a few at a time, until all are committed.

Each worker owns a contiguous range of units, so that neighbours share its cache, and a worker that runs out takes the far
half of the range that costs most (see unit_ranges.py).
"""

import threading
import time
from collections.abc import Collection
from typing import Any

from distributed import Client, Future

from batchpaged.cluster.engines import Engines, workers
from batchpaged.cluster.failure_limit import FailureLimit
from batchpaged.cluster.failures import raise_failures, result_of
from batchpaged.cluster.infer_tasks import infer_unit
from batchpaged.cluster.job import Job
from batchpaged.cluster.memory_shortages import MemoryShortages
from batchpaged.cluster.progress_tracker import ProgressTracker
from batchpaged.cluster.unit_ranges import Batch, CompletionSum, UnitRanges
from batchpaged.errors import StoppedError, UnfinishedError
from batchpaged.planning.cost import expected_decode_tokens
from batchpaged.planning.plan_file import read_plan
from batchpaged.planning.summary import PlanSummary
from batchpaged.run.progress import Progress, ProgressReporter
from batchpaged.run.stopping import StopRequest, waiting
from batchpaged.run.stored import Keeper
from batchpaged.run.unit_log import log_unit

POLL_SECONDS = 0.5  # how long a display may stand still
SETTLE_SECONDS = 0.02  # news that come together are taken in together
NO_WORKER_SECONDS = 300.0  # how long a cluster may be without any


class Inference:
    """Hands units to workers, a few at a time, until all are committed."""

    def __init__(
        self,
        client: Client,
        job: Job,
        job_future: Future,
        engines: Engines,
        summary: PlanSummary,
        keeper: Keeper,
        reporter: ProgressReporter,
    ) -> None:
        self._client, self._job, self._job_future = client, job, job_future
        self._engines, self._slots, self._keeper, self._reporter = engines.futures, engines.slots, keeper, reporter
        done, num_damaged = job.directory.finished_units(summary.num_units)
        self._shortages = MemoryShortages()
        self._failures = FailureLimit(job.pipeline.max_failed_rows, job.directory)
        self._failures.add(summary.num_failed + sum(facts.get("num_refused", 0) for facts in done.values()))
        self._note_earlier_work(len(done), num_damaged, summary.num_units)
        sampling = job.pipeline.sampling
        self._tracker = ProgressTracker(summary, sampling.max_tokens * sampling.num_sequences, list(done.values()))
        self._ranges = _unit_ranges(job, done)
        self._num_units = summary.num_units
        self._sent: dict[str, int] = {}  # by address of a worker: the unit sent to it last
        self._running: dict[Future, int] = {}  # future -> its unit
        self._news = threading.Event()  # a unit is done, or a worker says how far it is
        self._last_worker_seen = time.monotonic()
        self._is_ending = False  # asked to stop, and said so
        self._is_loaded = any(future.done() for future in self._engines)  # a model
        self._is_heard = False  # an engine has said how far it is

    def run(self, stop: StopRequest) -> None:
        self._client.subscribe_topic(self._job.topic, self._on_sample)
        try:
            with stop.heeded():
                while self._running or (self._ranges.num_left and not stop.is_set):
                    self._advance(stop)
        finally:
            self._client.unsubscribe_topic(self._job.topic)
        if stop.is_set and self._ranges.num_left:
            done = sum(map(self._job.directory.is_unit_done, range(self._num_units)))
            raise StoppedError(f"stopped as asked: {done} of {self._num_units} units are done")

    def _advance(self, stop: StopRequest) -> None:
        self._look_for_workers()
        if not stop.is_set:
            self._hand_out()
        elif not self._is_ending:
            self._say_that_it_stops()
        self._take_in()
        for line in self._shortages.take():
            self._reporter.note(line)
        self._show_progress()

    def _show_progress(self) -> None:
        """Until the first model is there, that is what is waited for.

        The future of a worker that is lost is never done again, not even when another worker has the model.
        """
        num_loaded = max(sum(future.done() for future in self._engines), int(self._is_heard))
        if not self._is_loaded:
            self._reporter.update(Progress("load", num_loaded, len(self._engines), "models"))
        self._is_loaded = self._is_loaded or num_loaded > 0
        if self._is_loaded:
            self._reporter.update(self._tracker.progress())

    def _say_that_it_stops(self) -> None:
        self._is_ending = True
        num_left, later = self._ranges.num_left, self._job.stages_left[1:]
        complete = f"no others are left, so {'this stage' if later else 'the run'} will be complete"
        rest = "; ".join([complete] * (not num_left) + [waiting(num_left, later)] * bool(num_left or later))
        units = "the unit that is at work is" if len(self._running) == 1 else f"{len(self._running)} units that are at work are"
        self._reporter.note(f"stopping once {units} done; {rest}; again stops at once")

    def _note_earlier_work(self, num_done: int, num_damaged: int, num_units: int) -> None:
        if num_done:
            self._reporter.note(f"{num_done} of {num_units} units are finished already")
        if num_damaged:
            self._reporter.note(f"{num_damaged} units were damaged on disk and are computed again")

    def _on_sample(self, event: tuple[float, dict[str, Any]]) -> None:
        self._tracker.on_sample(event[1])
        self._shortages.on_sample(event[1])
        self._is_heard = True
        self._news.set()

    def _look_for_workers(self) -> None:
        there = workers(self._client)
        self._tracker.attend(there)
        num_lost = self._slots.update(there)
        if num_lost:
            self._reporter.note(f"{num_lost} worker{'s' * (num_lost > 1)} lost; unfinished units are computed again")
        self._ranges.attend(self._slots.addresses)
        now = time.monotonic()
        if self._slots.addresses:
            self._last_worker_seen = now
        elif now - self._last_worker_seen > NO_WORKER_SECONDS:
            raise UnfinishedError("inference: the cluster has no workers any more; start some and run the same command again")

    def _hand_out(self) -> None:
        for slot, address in self._slots.addresses.items():
            self._ranges.report(slot, self._tracker.open_rows(address))
            for unit in self._ranges.hand_out(slot):
                self._running[self._submit(unit, address)] = unit
                self._sent[address] = unit

    def _submit(self, unit: int, address: str) -> Future:
        # Should the worker die, Dask runs the unit on another one.
        future = self._client.submit(
            infer_unit, self._job_future, unit, self._num_units, self._sent.get(address),
            key=f"infer-{self._job.sitting}-{unit:06}",
            workers=[address], allow_other_workers=True, priority=-unit,
        )  # fmt: skip
        future.add_done_callback(lambda _: self._news.set())
        return future

    def _take_in(self) -> None:
        self._wait_for_news()
        raise_failures(self._engines, "loading the model")
        for future in [future for future in self._running if future.done()]:
            unit, facts = self._running.pop(future), result_of(future, "inference")
            self._tracker.on_unit(facts)
            log_unit(self._reporter, self._job.directory, facts)
            self._failures.add(facts.get("num_refused", 0))
            self._ranges.finish(unit, CompletionSum(**facts["completions"]))
            self._keeper.keep(f"units/{self._job.directory.unit_file(unit).name}")
        self._keeper.keep()  # says what could not be kept

    def _wait_for_news(self) -> None:
        if self._news.wait(POLL_SECONDS):
            time.sleep(SETTLE_SECONDS)
        self._news.clear()


def _unit_ranges(job: Job, done: Collection[int]) -> UnitRanges:
    """`done`: units that are not to be computed."""
    units = [unit for unit in read_plan(job.directory.path)[1] if unit.index not in done]
    engine, sampling = job.pipeline.engine, job.pipeline.sampling
    first_guess = expected_decode_tokens(sampling.max_tokens, sampling.ignore_eos) * sampling.num_sequences
    return UnitRanges(units, job.num_workers, first_guess, Batch(engine.max_sequences, engine.max_batch_tokens))
