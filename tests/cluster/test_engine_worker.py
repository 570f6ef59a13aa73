"""The thread that steps a worker's engine, with an engine that can be watched and made to wait or fail."""

import gc
import threading
import time
import weakref
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from batchpaged.cluster import engine_worker
from batchpaged.cluster.current_engine import CurrentEngine
from batchpaged.cluster.engine_worker import EngineWorker
from batchpaged.cluster.serving import Serving, UnitRow
from batchpaged.engine.engine import Completion, Output
from batchpaged.engine.sampling_params import SamplingParams
from batchpaged.engine.sequence import TokenCounts
from batchpaged.engine.sequence_groups import GroupCounts
from batchpaged.errors import RowError, UnfinishedError

SECONDS = 60  # for what should come at once


@pytest.fixture(autouse=True)
def released(monkeypatch):
    """Which engines' memory was given back; truly, it takes some tenths of a second."""
    threads = []
    monkeypatch.setattr(engine_worker, "release_memory", lambda: threads.append(threading.current_thread()))
    return threads


@dataclass
class FakeEngine:
    """A row of n tokens takes n steps. Two rows run at a time. `gate` lets steps pass."""

    gate: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(10**6))
    fails_at: int | None = None
    num_steps: int = 0
    busy_seconds: float = 0.0
    num_out_of_memory: int = 0
    most_blocks: int = 3
    num_stages: int = 1
    queue: list = field(default_factory=list)  # [steps left, tag, prompt tokens]
    history: list = field(default_factory=list)  # tags that ran, step by step
    closed_in: list = field(default_factory=list)  # threads

    def __post_init__(self):
        self.pool = SimpleNamespace(num_blocks=10, block_size=16, num_referenced=2)
        self.expected = []  # what the scheduler was told to expect
        self.scheduler = SimpleNamespace(
            counts=TokenCounts(),
            groups=SimpleNamespace(counts=GroupCounts()),
            tiers=None,
            num_preemptions=0,
            max_batch_tokens=64,
            running=[],
            waiting=[],
            check=lambda: None,
            expect=self.expected.append,
        )

    def begin_stage(self):
        self.num_stages += 1

    @property
    def has_unfinished(self):
        return bool(self.queue)

    def add(self, token_ids, params, row_key, tag, grammar, adapter):
        if not token_ids:
            raise RowError(f"{row_key} can never fit")
        self.queue.append([len(token_ids), tag, len(token_ids)])

    def open_tags(self):
        return [tag for _, tag, _ in self.queue[:2]]

    def close(self):
        self.closed_in.append(threading.current_thread())

    def step(self):
        self.gate.acquire()
        self.num_steps += 1
        if self.num_steps == self.fails_at:
            raise FloatingPointError("the engine broke")
        batch = self.queue[:2]
        self.history.append([tag for _, tag, _ in batch])
        for entry in batch:
            entry[0] -= 1
        done = [entry for entry in batch if entry[0] == 0]
        self.queue = [entry for entry in self.queue if entry[0]]
        self.scheduler.counts.generated += len(batch)
        return [Completion(tag, (Output(str(tag), (7,) * n, "length"),), n, 0, n, 0) for _, tag, n in done]


def start(engine, samples=None, fans_out=False, stall_seconds=None):
    emit = (lambda sample: None) if samples is None else samples.append
    build = engine if callable(engine) else lambda: engine
    return EngineWorker(build, Serving("s", SamplingParams(), emit, fans_out), "w", "cpu", stall_seconds).start()


def unit(*lengths):
    return [UnitRow([1] * length, f"row {i}") for i, length in enumerate(lengths)]


def test_units_run_back_to_back():
    """Rows of the second unit run while the last row of the first still does; nothing drains in between."""
    engine = FakeEngine(gate=threading.Semaphore(0))
    worker = start(engine)
    first, second = worker.submit(unit(1, 5)), worker.submit(unit(3))
    engine.gate.release(100)
    assert [row.text for row in first.result(SECONDS).rows] == ["(0, 0)", "(0, 1)"]
    assert [row.text for row in second.result(SECONDS).rows] == ["(1, 0)"]
    assert [(0, 1), (1, 0)] in engine.history
    assert engine.num_steps == 5  # as many as the longest row alone takes


def test_a_stage_begins_with_counters_and_a_session_of_its_own():
    engine, samples = FakeEngine(), []
    worker = start(engine)
    first = worker.submit(unit(2, 3)).result(SECONDS).facts
    time.sleep(0.002)  # a session is named by the millisecond
    for _ in range(2):  # every unit of the stage says so
        worker.serve(Serving("the next", SamplingParams(), samples.append))
    second = worker.submit(unit(4)).result(SECONDS).facts
    assert (first["num_completion_tokens"], second["num_completion_tokens"]) == (5, 4)
    assert (second["num_steps"], second["load_seconds"]) == (4, 0.0)
    assert engine.num_stages == 2
    assert second["session"] != first["session"]
    assert {sample["session"] for sample in samples} == {second["session"]}


def test_rows_come_back_in_the_order_given_whatever_finishes_first():
    outcome = start(FakeEngine()).submit(unit(5, 1, 3)).result(SECONDS)
    assert [row.tag for row in outcome.rows] == [(0, 0), (0, 1), (0, 2)]


def test_a_row_that_the_engine_refuses_is_said_why():
    worker = start(FakeEngine())
    outcome = worker.submit(unit(2, 0, 1)).result(SECONDS)
    assert outcome.rows[1] == "row 1 can never fit" and outcome.rows[0].text == "(0, 0)"
    assert worker.submit(unit(0, 0)).result(SECONDS).rows == ["row 0 can never fit", "row 1 can never fit"]
    assert worker.submit([]).result(SECONDS).rows == []


def test_equal_rows_are_computed_once_and_fanned_out():
    engine, samples = FakeEngine(), []
    worker = start(engine, samples, fans_out=True)
    outcome = worker.submit(unit(2, 3, 3, 3, 1, 2)).result(SECONDS)
    assert {tag for step in engine.history for tag in step} == {(0, 0), (0, 1), (0, 4), (0, 5)}
    assert [row.text for row in outcome.rows] == ["(0, 0)", "(0, 1)", "(0, 1)", "(0, 1)", "(0, 4)", "(0, 5)"]
    computed, copied = outcome.rows[1], outcome.rows[2]
    assert copied.num_cached_tokens == copied.num_prompt_tokens == 3 and copied.num_prefilled_tokens == 0
    assert (copied.token_ids, copied.finish_reason) == (computed.token_ids, computed.finish_reason)
    assert computed.num_prefilled_tokens == 3
    assert outcome.facts["num_deduplicated"] == 2
    assert worker.submit(unit(3)).result(SECONDS).facts["num_deduplicated"] == 0


def test_progress_counts_rows_that_were_fanned_out_and_their_tokens():
    samples = []
    facts = start(FakeEngine(), samples, fans_out=True).submit(unit(4, 4, 4)).result(SECONDS).facts
    assert samples[-1]["num_rows_done"] == 3
    assert samples[-1]["num_cached_tokens"] == facts["num_cached_tokens"] == 2 * 4
    assert samples[-1]["num_completion_tokens"] == facts["num_completion_tokens"] == 4 + 2 * 4  # 4 steps, and copies


def test_a_refusal_is_fanned_out_as_well():
    outcome = start(FakeEngine(), fans_out=True).submit(unit(0, 0, 1)).result(SECONDS)
    assert outcome.rows[:2] == ["row 0 can never fit"] * 2 and outcome.rows[2].text == "(0, 2)"


def test_under_sampling_equal_rows_are_each_computed():
    outcome = start(FakeEngine()).submit(unit(2, 2)).result(SECONDS)
    assert [row.text for row in outcome.rows] == ["(0, 0)", "(0, 1)"]
    assert outcome.facts["num_deduplicated"] == 0


def test_the_scheduler_is_told_what_the_next_unit_begins_with():
    engine = FakeEngine()
    worker = start(engine)
    worker.submit(unit(1), next_prompt=[5, 6]).result(SECONDS)
    worker.submit(unit(1)).result(SECONDS)
    assert engine.expected == [[5, 6], None]


def test_facts_and_samples_hold_the_engines_sums():
    samples = []
    worker = start(FakeEngine(), samples)
    first = worker.submit(unit(2)).result(SECONDS).facts
    second = worker.submit(unit(3)).result(SECONDS).facts
    assert (first["num_completion_tokens"], second["num_completion_tokens"]) == (2, 5)
    assert first["session"] == second["session"] == worker.session
    assert first["started_at"] <= first["finished_at"] <= second["finished_at"]
    assert first["timeline"] and second["timeline"] and first["timeline"][-1]["cache_usage"] == 0.2
    assert first["most_blocks"] == 3
    assert samples[-1]["num_rows_done"] == 2 and samples[-1]["session"] == worker.session


def test_an_engine_that_fails_fails_all_that_wait_and_all_that_come():
    engine = FakeEngine(gate=threading.Semaphore(0), fails_at=2)
    worker = start(engine)
    worker.loaded.result(SECONDS)
    waiting = [worker.submit(unit(3)), worker.submit(unit(3))]
    engine.gate.release(100)
    for future in waiting:
        with pytest.raises(FloatingPointError):
            future.result(SECONDS)
    with pytest.raises(FloatingPointError):
        worker.submit(unit(1)).result(SECONDS)


def test_an_engine_that_cannot_be_built_says_so():
    def build():
        raise MemoryError("no room")

    worker = start(build)
    for future in (worker.loaded, worker.submit(unit(1))):
        with pytest.raises(MemoryError):
            future.result(SECONDS)


def test_submits_never_wait_forever_however_they_meet_the_end():
    for _ in range(50):
        worker = start(FakeEngine(fails_at=1))
        threads, futures = [], []
        for _ in range(4):
            threads.append(threading.Thread(target=lambda: futures.append(worker.submit(unit(1)))))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)
        assert len(futures) == 4
        assert all(isinstance(future.exception(SECONDS), FloatingPointError) for future in futures)


def test_an_engine_that_broke_is_gone_though_its_error_is_kept(released):
    engine = FakeEngine(fails_at=2)
    worker, gone, closed_in = start(engine), weakref.ref(engine), engine.closed_in
    future = worker.submit(unit(3))
    worker.join(SECONDS)
    error = future.exception(SECONDS)
    worker.build = None
    del engine
    gc.collect()
    assert gone() is None and isinstance(error, FloatingPointError)
    assert released == closed_in == [worker._thread]


def test_a_stopped_engine_is_gone_and_its_units_are_told():
    engine = FakeEngine(gate=threading.Semaphore(0))
    worker, gone, closed_in = start(engine), weakref.ref(engine), engine.closed_in
    worker.loaded.result(SECONDS)
    future = worker.submit(unit(100))
    worker.stop()
    engine.gate.release(10**3)
    worker.join(SECONDS)
    with pytest.raises(UnfinishedError, match="stopped"):
        future.result(SECONDS)
    with pytest.raises(UnfinishedError, match="stopped"):
        worker.submit(unit(1)).result(SECONDS)
    worker.build = None
    del engine
    gc.collect()
    assert gone() is None and closed_in == [worker._thread]


# --- which engine a process has ---


def test_a_sitting_has_one_engine():
    current, made = CurrentEngine(), []

    def make():
        made.append(start(FakeEngine()))
        return made[-1]

    assert current.of("a", make) is current.of("a", make)
    assert len(made) == 1


def test_the_next_sitting_frees_the_engine_that_the_last_one_left():
    current = CurrentEngine()
    left = current.of("a", lambda: start(FakeEngine()))
    states = []
    current.of("b", lambda: states.append(left._thread.is_alive()) or start(FakeEngine()))
    assert states == [False]  # before the new one is made
    with pytest.raises(UnfinishedError, match="over"):
        current.of("a", lambda: start(FakeEngine()))  # a task that outlived its client


def test_an_ended_sitting_has_no_engine_any_more():
    current = CurrentEngine()
    engine = current.of("a", lambda: start(FakeEngine()))
    current.end("b")  # never had one here
    assert engine.error is None
    current.end("a")
    engine.join(SECONDS)
    assert isinstance(engine.error, UnfinishedError)
    for sitting in ("a", "b"):
        with pytest.raises(UnfinishedError):
            current.of(sitting, lambda: start(FakeEngine()))


def test_word_of_ended_rows_goes_out_before_their_unit_is_done(monkeypatch):
    monkeypatch.setattr(engine_worker, "REPORT_SECONDS", 0.0)
    samples = []
    worker = start(FakeEngine(), samples)
    outcome = worker.submit(unit(9, 1, 1)).result(SECONDS)
    told = [(sample["num_begun"], sample["num_ended"]) for sample in samples]
    assert (3, 1) in told and (3, 2) in told  # nothing waits in this engine's queue: all three have begun
    assert told[-1] == (0, 0)
    assert len(outcome.facts["timeline"]) < len(samples)  # which is kept for good


# --- an engine that does not get on ---


def test_a_step_that_does_not_come_back_is_given_up_by_unit_and_row():
    gate = threading.Semaphore(3)
    worker = start(FakeEngine(gate=gate), stall_seconds=1.0)
    first, second = worker.submit(unit(1), unit=7), worker.submit(unit(9, 9, 9), unit=8)
    assert first.result(SECONDS).rows[0].text == "(0, 0)"
    with pytest.raises(UnfinishedError, match="worker w has not finished a step for .* at unit 8, row row 0, unit 8, row row 1"):
        second.result(SECONDS)
    with pytest.raises(UnfinishedError, match="engine.stall_seconds"):
        worker.submit(unit(1)).result(SECONDS)
    gate.release(100)  # should the step come back after all, its thread ends without a word
    worker.join(SECONDS)


def test_an_engine_without_work_is_not_given_up():
    worker = start(FakeEngine(), stall_seconds=0.5)
    assert worker.submit(unit(1)).result(SECONDS)
    assert not worker._watchdog._stopped.wait(0.8)
    assert worker.submit(unit(2)).result(SECONDS)
    worker.stop()
