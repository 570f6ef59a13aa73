"""The Dask graph of a run, whole.

    count part 0 ─┐
    count part 1 ─┼─> merge counts ─> tokenise ...      with prompt.reorder only
    ...          ─┘

    tokenise part 0 ─┐   sort run 0 ─┐                order partition 0 ─┐   write partition 0 ─┐
    tokenise part 1 ─┼─> sort run 1 ─┼─> splitters ─> order partition 1 ─┼─> write partition 1 ─┼─> plan
    ...             ─┘   ...        ─┘                ...               ─┘   ...               ─┘

    plan ─> unit 0, unit 1, ... on the first worker  ─┐
            ...                                       ├─> assemble
            unit n, unit n+1, ... on the last worker ─┘

Every task checks first whether its result is on disk already, so that Dask may run any of them again. Units are handed
out a few at a time: each worker owns a contiguous range, so that neighbours share its cache, and a worker that runs out
takes the far half of the range that costs most (see unit_ranges.py).
"""

import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import CancelledError
from typing import Any

from distributed import Client, Future, as_completed
from distributed.scheduler import KilledWorker

from batchpaged.cluster.count_tasks import count_part, load_reorder, merge_parts
from batchpaged.cluster.failure_limit import FailureLimit
from batchpaged.cluster.infer_tasks import infer_unit, start_engine, stop_engine
from batchpaged.cluster.job import Job
from batchpaged.cluster.memory_shortages import MemoryShortages
from batchpaged.cluster.progress_tracker import ProgressTracker
from batchpaged.cluster.prompt_tasks import plan_run, plan_step, tokenise_part
from batchpaged.cluster.unit_ranges import Batch, CompletionSum, UnitRanges
from batchpaged.cluster.worker_slots import WorkerSlots
from batchpaged.dataset.sink import assemble
from batchpaged.dataset.source import refuse_if
from batchpaged.errors import BatchpagedError, InputError, StoppedError, UnfinishedError
from batchpaged.planning.cost import ModelCost, expected_decode_tokens
from batchpaged.planning.plan_file import has_plan, read_plan
from batchpaged.planning.planner import Each
from batchpaged.planning.summary import PlanSummary
from batchpaged.run.progress import Progress, ProgressReporter
from batchpaged.run.stopping import StopRequest
from batchpaged.run.stored import Keeper
from batchpaged.run.unit_log import log_unit

POLL_SECONDS = 0.5  # how long a display may stand still
SETTLE_SECONDS = 0.02  # news that come together are taken in together
NO_WORKER_SECONDS = 300.0  # how long a cluster may be without any


def run_graph(
    client: Client,
    job: Job,
    keeper: Keeper,
    reporter: ProgressReporter,
    model_cost: Callable[[], ModelCost | None],
    stop: StopRequest,
) -> dict[str, float]:
    """Run every stage that is not done yet. -> seconds of the stages; results are in the run directory.

    `keeper` is told of plan and units as they are committed.
    `model_cost` is asked if there is something to plan. Raises StoppedError if `stop` is set while units are computed.
    """
    job_future = client.submit(_same, job, pure=False)
    slots = WorkerSlots(job.num_workers)
    slots.update(workers(client))
    engines = [
        client.submit(start_engine, job_future, workers=[address], pure=False) for address in slots.addresses.values()
    ]
    try:
        summary, times = _plan(client, job, job_future, engines, reporter, model_cost)
        keeper.keep_all()
        _Inference(client, job, job_future, engines, slots, summary, keeper, reporter).run(stop)
    finally:
        _stop_engines(client, job)
    started = time.perf_counter()
    _assemble(job, summary, reporter)
    return {**times, "assemble": time.perf_counter() - started}


def _same(job: Job) -> Job:
    return job


def _stop_engines(client: Client, job: Job) -> None:
    """A cluster that outlives the run gets its memory back."""
    try:
        client.run(stop_engine, job.sitting, on_error="ignore")
    except Exception:  # the cluster is gone, and the engines with it; why the run ended is the better message
        pass


def workers(client: Client) -> dict[str, str]:
    """Name by address of the workers that the cluster has now."""
    return {address: str(worker["name"]) for address, worker in _worker_facts(client).items()}


def _worker_facts(client: Client) -> dict[str, dict[str, Any]]:
    return client.scheduler_info(n_workers=-1)["workers"]


# --- read, tokenise, plan ---


def _plan(
    client: Client,
    job: Job,
    job_future: Future,
    engines: Sequence[Future],
    reporter: ProgressReporter,
    model_cost: Callable[[], ModelCost | None],
) -> tuple[PlanSummary, dict[str, float]]:
    if has_plan(job.directory.path):
        return read_plan(job.directory.path)[0], {}
    num_parts = len(job.source.parts)
    counted = _count_documents(client, job, job_future)
    parts = [
        client.submit(tokenise_part, job_future, i, counted, key=f"tokenise-{job.sitting}-{i:05}", priority=-i)
        for i in range(num_parts)
    ]
    reporter.update(Progress("read", 0, num_parts, "parts"))
    _raise_failures([counted] if counted else [], "counting documents")
    cost = model_cost()  # while the workers read
    problems: list[str] = []
    failures = FailureLimit(job.pipeline.max_failed_rows, job.directory)
    for num_done, (future, facts) in enumerate(as_completed(parts, with_results=True, raise_errors=False), 1):
        problems += _input_problems(future)
        failures.add(facts["num_failed"] if future.status == "finished" else 0)
        _raise_failures(engines, "loading the model")
        reporter.update(Progress("read", num_done, num_parts, "parts"))
    refuse_if(list(dict.fromkeys(problems)))
    reporter.update(Progress("plan", 0, job.source.num_rows, "rows"))
    seconds = [_result(part, "reading and tokenising") for part in parts]
    started = time.perf_counter()
    summary = plan_run(job, cost, _on_workers(client, job, engines))
    times = {key: sum(s[key] for s in seconds) for key in ("read", "tokenize")}
    reporter.update(Progress("plan", job.source.num_rows, job.source.num_rows, "rows"))
    return summary, {**times, "plan": time.perf_counter() - started}


def _input_problems(future: Future) -> list[str]:
    """What is wrong with the part, if it cannot be read: the others are looked at all the same. Raises anything else."""
    error = future.exception() if future.status == "error" else None
    if isinstance(error, InputError):
        return list(error.problems)
    _raise_failures([future], "reading and tokenising")
    return []


def _on_workers(client: Client, job: Job, engines: Sequence[Future]) -> Each:
    """Runs the steps of a stage of planning as tasks."""

    def each(function: Callable[..., Any], items: Sequence[tuple[Any, ...]]) -> list[Any]:
        futures = [
            client.submit(plan_step, function, *item, key=f"{function.__name__}-{job.sitting}-{i:05}", priority=-i)
            for i, item in enumerate(items)
        ]
        for future, _ in as_completed(futures, with_results=True, raise_errors=False):
            _raise_failures([future], "planning")
            _raise_failures(engines, "loading the model")
        return [_result(future, "planning") for future in futures]

    return each


def _count_documents(client: Client, job: Job, job_future: Future) -> Future | None:
    """One pass over the column of `prompt.reorder`, if there is one: the order of a row depends on all rows."""
    if job.pipeline.prompt.reorder is None:
        return None
    parts = [
        client.submit(count_part, job_future, part.index, key=f"count-{job.sitting}-{part.index:05}")
        for part in job.source.parts
    ]
    return client.submit(merge_parts, job_future, parts, key=f"counts-{job.sitting}")


# --- infer ---


class _Inference:
    """Hands units to workers, a few at a time, until all are committed."""

    def __init__(
        self,
        client: Client,
        job: Job,
        job_future: Future,
        engines: Sequence[Future],
        slots: WorkerSlots,
        summary: PlanSummary,
        keeper: Keeper,
        reporter: ProgressReporter,
    ) -> None:
        self._client, self._job, self._job_future = client, job, job_future
        self._engines, self._slots, self._keeper, self._reporter = engines, slots, keeper, reporter
        done, num_damaged = job.directory.finished_units(summary.num_units)
        self._shortages = MemoryShortages()
        self._failures = FailureLimit(job.pipeline.max_failed_rows, job.directory)
        self._failures.add(summary.num_failed + sum(facts.get("num_refused", 0) for facts in done.values()))
        self._note_earlier_work(len(done), num_damaged, summary.num_units)
        self._tracker = ProgressTracker(summary, job.pipeline.sampling.max_tokens, list(done.values()))
        self._ranges = _unit_ranges(job, done)
        self._num_units = summary.num_units
        self._sent: dict[str, int] = {}  # by address of a worker: the unit sent to it last
        self._running: dict[Future, int] = {}  # future -> its unit
        self._news = threading.Event()  # a unit is done, or a worker says how far it is
        self._last_worker_seen = time.monotonic()
        self._is_ending = False  # asked to stop, and said so

    def run(self, stop: StopRequest) -> None:
        self._client.subscribe_topic(self._job.topic, self._on_sample)
        try:
            with stop.heeded():
                while self._running or (self._ranges.num_left and not stop.is_set):
                    self._advance(stop)
        finally:
            self._client.unsubscribe_topic(self._job.topic)
        if stop.is_set:
            done = sum(map(self._job.directory.is_unit_done, range(self._num_units)))
            raise StoppedError(f"stopped as asked: {done} of {self._num_units} units are done")

    def _advance(self, stop: StopRequest) -> None:
        self._look_for_workers()
        if not stop.is_set:
            self._hand_out()
        elif not self._is_ending:
            self._is_ending = True
            self._reporter.note(f"stopping once {len(self._running)} units that are at work are done; again stops at once")
        self._take_in()
        for line in self._shortages.take():
            self._reporter.note(line)
        self._reporter.update(self._tracker.progress())

    def _note_earlier_work(self, num_done: int, num_damaged: int, num_units: int) -> None:
        if num_done:
            self._reporter.note(f"{num_done} of {num_units} units are finished already")
        if num_damaged:
            self._reporter.note(f"{num_damaged} units were damaged on disk and are computed again")

    def _on_sample(self, event: tuple[float, dict[str, Any]]) -> None:
        self._tracker.on_sample(event[1])
        self._shortages.on_sample(event[1])
        self._news.set()

    def _look_for_workers(self) -> None:
        num_lost = self._slots.update(workers(self._client))
        if num_lost:
            self._reporter.note(f"{num_lost} worker{'s' * (num_lost > 1)} lost; unfinished units are computed again")
        self._ranges.attend(self._slots.addresses)
        now = time.monotonic()
        if self._slots.addresses:
            self._last_worker_seen = now
        elif now - self._last_worker_seen > NO_WORKER_SECONDS:
            raise UnfinishedError("inference: the cluster has no workers any more; finished units are kept")

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
        _raise_failures(self._engines, "loading the model")
        for future in [future for future in self._running if future.done()]:
            unit, facts = self._running.pop(future), _result(future, "inference")
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
    first_guess = expected_decode_tokens(sampling.max_tokens, sampling.ignore_eos)
    return UnitRanges(units, job.num_workers, first_guess, Batch(engine.max_sequences, engine.max_batch_tokens))


# --- assemble ---


def _assemble(job: Job, summary: PlanSummary, reporter: ProgressReporter) -> None:
    total = summary.num_rows
    reporter.update(Progress("assemble", 0, total, "rows"))
    assemble(
        job.source,
        job.directory.units,
        job.directory.output,
        lambda num_rows: reporter.update(Progress("assemble", num_rows, total, "rows")),
        load_reorder(job),
    )


# --- failures ---


def _raise_failures(futures: Sequence[Future], stage: str) -> None:
    for future in futures:
        if future.status in ("error", "cancelled"):  # not "lost": Dask computes again what went with a worker
            _result(future, stage)


def _result(future: Future, stage: str) -> Any:
    """The task's result, or the error that the command line shows."""
    try:
        return future.result()
    except BatchpagedError:
        raise
    except CancelledError as error:
        raise UnfinishedError("the connection to the Dask cluster was lost; finished units are kept") from error
    except (KilledWorker, MemoryError) as error:
        what = "a worker died several times in a row, most likely" if isinstance(error, KilledWorker) else "stopped"
        raise UnfinishedError(
            f"{stage}: {what} for want of memory; finished units are kept. "
            "Lower engine.kv_cache or engine.max_batch_tokens and run the same command again"
        ) from error
    except (OSError, RuntimeError) as error:
        raise UnfinishedError(
            f"{stage} stopped: {type(error).__name__}: {error}; finished units are kept, run the same command again"
        ) from error
