"""What becomes of failures, and of workers that come and go, in the client's part of the graph."""

from concurrent.futures import CancelledError
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import tiny_runs
from distributed.scheduler import KilledWorker

from batchpaged import api
from batchpaged.cluster import inference as inference_module
from batchpaged.cluster.failure_limit import FailureLimit
from batchpaged.cluster.failures import raise_failures, result_of
from batchpaged.cluster.unit_ranges import STEPS_AHEAD, Batch, OpenRows, UnitRanges
from batchpaged.cluster.worker_slots import WorkerSlots
from batchpaged.errors import ModelError, StoppedError, UnfinishedError
from batchpaged.planning.units import Unit
from batchpaged.run.directory import RunDirectory
from batchpaged.run.progress import Progress
from batchpaged.run.stopping import StopRequest
from batchpaged.run.stored import NothingToKeep

ROWS_PER_UNIT = 8


class Result:
    def __init__(self, error=None, status="error"):
        self.error, self.status = error, status

    def result(self):
        if self.error is not None:
            raise self.error
        return "result"


@pytest.mark.parametrize(
    ("error", "raised", "words"),
    [
        (ModelError("no such weights"), ModelError, "^no such weights$"),
        (KilledWorker("task", "tcp://a", 3), UnfinishedError, "a worker died several times.*engine.kv_cache"),
        (CancelledError(), UnfinishedError, "connection to the Dask cluster was lost"),
        (OSError(28, "No space left on device"), UnfinishedError, "inference stopped: OSError: .*No space left"),
        (MemoryError("x"), UnfinishedError, "inference: stopped for want of memory.*engine.kv_cache"),
        (ZeroDivisionError("a bug"), ZeroDivisionError, "a bug"),
    ],
)
def test_a_failed_task_is_told_in_words_of_ours(error, raised, words):
    with pytest.raises(raised, match=words):
        result_of(Result(error), "inference")


def test_only_failures_are_raised_and_what_is_computed_again_is_not_one():
    raise_failures([Result(OSError(), status) for status in ("pending", "finished", "lost")], "x")
    with pytest.raises(UnfinishedError):
        raise_failures([Result(status="finished"), Result(CancelledError(), "cancelled")], "x")


class Inference(inference_module.Inference):
    """With workers and futures that the test makes up, and without waiting."""

    def __init__(self, num_units, num_slots, depth):
        self.workers, self.sent, self.notes, self.finished = {}, [], [], []
        units = [Unit(i, i * ROWS_PER_UNIT, (i + 1) * ROWS_PER_UNIT, 100.0, 50, 0) for i in range(num_units)]
        batch = Batch(max_sequences=10**6, max_tokens=(depth - 0.5) * 100.0 / STEPS_AHEAD)  # so many units are enough
        self._ranges, self._slots = UnitRanges(units, num_slots, 1.0, batch), WorkerSlots(num_slots)
        self._running, self._sent, self._engines = {}, {}, []
        self._job = SimpleNamespace(directory=None)
        self._client = SimpleNamespace(scheduler_info=lambda n_workers: {"workers": self.workers})
        self._reporter = SimpleNamespace(note=self.notes.append, log=lambda event, **fields: None)
        self.open_rows = {}
        self._tracker = SimpleNamespace(
            attend=lambda addresses: None,
            on_unit=self.finished.append, open_rows=lambda address: self.open_rows.get(address, OpenRows(0, 0))
        )
        self._failures = FailureLimit(None, None)
        self._keeper, self._job = NothingToKeep(), SimpleNamespace(directory=RunDirectory("run"))
        self._last_worker_seen = inference_module.time.monotonic()
        self._num_units, self._is_ending, self._is_loaded, self._is_heard = num_units, False, True, False
        self._news = SimpleNamespace(set=lambda: None)

    def _wait_for_news(self):
        pass

    def _submit(self, unit, address):
        self.sent.append((unit, address))
        return FakeFuture(unit)

    def tick(self, *done_units):
        for future in self._running:
            future.is_done = future.unit in done_units
        self._look_for_workers()
        self._hand_out()
        self._take_in()


class FakeFuture:
    def __init__(self, unit):
        self.unit, self.is_done = unit, False

    def done(self):
        return self.is_done

    def result(self):
        return {"unit": self.unit, "num_rows": ROWS_PER_UNIT, "completions": {"num_rows": ROWS_PER_UNIT, "num_tokens": ROWS_PER_UNIT}}


def named(**names):
    return {address: {"name": name} for address, name in names.items()}


@pytest.mark.parametrize(
    ("num_units", "stages_left", "note"),
    [
        (1, (), "stopping once the unit that is at work is done; no others are left, so the run will be complete; again stops at once"),
        (3, (), "stopping once 2 units that are at work are done; 1 more wait for the next start; again stops at once"),
        (
            1,
            ("answer", "judge"),
            "stopping once the unit that is at work is done; no others are left, so this stage will be complete; "
            "stage judge waits for the next start; again stops at once",
        ),
        (
            3,
            ("answer", "judge", "rank"),
            "stopping once 2 units that are at work are done; 1 more, and stages judge, rank wait for the next start; "
            "again stops at once",
        ),
        (
            1,
            ("rank",),
            "stopping once the unit that is at work is done; no others are left, so the run will be complete; "
            "again stops at once",
        ),
    ],
)
def test_a_stop_ends_the_run_unless_the_units_at_work_are_the_last(num_units, stages_left, note):
    inference = Inference(num_units, num_slots=1, depth=2)
    inference.workers = named(a="0")
    inference.tick()
    stop, seen = StopRequest(), []
    inference._client.subscribe_topic = inference._client.unsubscribe_topic = lambda *given: None
    inference._tracker.progress, inference._reporter.update = lambda: "progress", seen.append
    inference._shortages = SimpleNamespace(take=list)
    inference._job = SimpleNamespace(topic="t", directory=RunDirectory("run"), stages_left=stages_left)
    stop.is_set = True
    for future in inference._running:
        future.is_done = True
    with pytest.raises(StoppedError) if num_units == 3 else nullcontext():
        inference.run(stop)
    assert inference.notes == [note] and seen == ["progress"] and len(inference.finished) == min(2, num_units)


def test_until_a_model_is_there_its_loading_is_shown():
    inference, seen = Inference(num_units=1, num_slots=1, depth=1), []
    inference._tracker.progress, inference._reporter.update = lambda: "progress", seen.append
    inference._engines, inference._is_loaded = [FakeFuture(0), FakeFuture(1)], False
    inference._show_progress()
    inference._engines[1].is_done = True
    inference._show_progress()
    inference._show_progress()
    assert seen == [Progress("load", 0, 2, "models"), Progress("load", 1, 2, "models"), "progress", "progress"]


def test_an_engine_that_says_how_far_it_is_has_its_model_though_its_predecessor_was_lost():
    inference, seen = Inference(num_units=1, num_slots=1, depth=1), []
    inference._tracker.progress, inference._reporter.update = lambda: "progress", seen.append
    inference._tracker.on_sample, inference._shortages = lambda sample: None, SimpleNamespace(on_sample=lambda sample: None)
    inference._engines, inference._is_loaded = [FakeFuture(0)], False
    inference._show_progress()
    inference._on_sample((0.0, {}))
    inference._show_progress()
    assert seen == [Progress("load", 0, 1, "models"), Progress("load", 1, 1, "models"), "progress"]


def test_neighbours_go_to_the_same_worker_a_few_at_a_time():
    inference = Inference(num_units=16, num_slots=2, depth=2)
    inference.workers = named(a="0", b="1")
    inference.tick()
    assert inference.sent == [(0, "a"), (1, "a"), (8, "b"), (9, "b")]
    inference.tick(0, 9)
    inference.tick()
    assert inference.sent[4:] == [(2, "a"), (10, "b")]
    assert [facts["unit"] for facts in inference.finished] == [0, 9]


def test_a_worker_that_has_begun_what_it_was_sent_is_sent_more():
    inference = Inference(num_units=8, num_slots=1, depth=2)
    inference.workers = named(a="0")
    inference.tick()
    inference.open_rows = {"a": OpenRows(num_begun=ROWS_PER_UNIT, num_ended=2)}
    inference.tick()
    assert inference.sent == [(0, "a"), (1, "a"), (2, "a")]


def test_a_lost_worker_is_noted_once_and_its_range_waits_for_the_next():
    inference = Inference(num_units=8, num_slots=2, depth=1)
    inference.workers = named(a="0", b="1")
    inference.tick()
    inference.workers = named(b="1")
    inference.tick()
    inference.tick(0, 4)  # the lost worker's unit was computed elsewhere
    inference.workers = named(b="1", c="0")
    inference.tick()
    assert inference.notes == ["1 worker lost; unfinished units are computed again"]
    assert inference.sent == [(0, "a"), (4, "b"), (1, "c"), (5, "b")]


def test_a_cluster_that_stays_without_workers_ends_the_run(monkeypatch):
    inference = Inference(num_units=8, num_slots=1, depth=1)
    inference.workers = named(a="0")
    inference.tick()
    inference.workers = {}
    inference.tick()
    monkeypatch.setattr(inference_module, "NO_WORKER_SECONDS", -1.0)
    with pytest.raises(UnfinishedError, match="no workers any more"):
        inference.tick()


def test_a_run_hears_how_far_its_workers_are(monkeypatch):
    """By the address that Dask writes into events: found under no other name."""
    heard = []

    class Tracker(inference_module.ProgressTracker):
        def open_rows(self, address):
            heard.append(super().open_rows(address))
            return heard[-1]

    monkeypatch.setattr(inference_module, "ProgressTracker", Tracker)
    api.run(tiny_runs.pipeline(tiny_runs.new_path("heard")))
    assert max(rows.num_begun for rows in heard) > 0
