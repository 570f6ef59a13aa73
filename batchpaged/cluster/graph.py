"""The Dask graph of a run, whole.

    tokenise part 0 ─┐
    tokenise part 1 ─┼─> plan ─> unit 0, unit 1, ... on the first worker  ─┐
    ...             ─┘           ...                                       ├─> assemble
                                 unit n, unit n+1, ... on the last worker ─┘

Every task checks first whether its result is on disk already, so that Dask may run any of them again. Units are handed
out a few at a time: each worker owns a contiguous range, so that neighbours share its cache, and a worker that runs out
takes the far half of the longest range left.
"""

import time
from collections.abc import Callable
from typing import Any

from distributed import Client, Future, as_completed
from distributed.scheduler import KilledWorker

from batchpaged.cluster.infer_tasks import infer_unit, start_engine
from batchpaged.cluster.job import Job
from batchpaged.cluster.prompt_tasks import plan_run, tokenise_part
from batchpaged.cluster.unit_ranges import UnitRanges
from batchpaged.run.unit_file import read_unit_facts
from batchpaged.cluster.progress_tracker import ProgressTracker
from batchpaged.dataset.sink import assemble
from batchpaged.errors import BatchpagedError, UnfinishedError
from batchpaged.planning.summary import PlanSummary
from batchpaged.run.progress import Progress, ProgressReporter

MIN_UNITS_IN_FLIGHT = 2
POLL_SECONDS = 0.5


def run_graph(client: Client, job: Job, reporter: ProgressReporter) -> dict[str, float]:
    """Run every stage that is not done yet. -> seconds of the stages; results are in the run directory."""
    job_future = client.submit(_same, job, pure=False)
    addresses = _worker_addresses(client, job.num_workers)
    engines = [client.submit(start_engine, job_future, workers=[address], pure=False) for address in addresses]
    summary, times = _plan(client, job, job_future, reporter)
    _infer(client, job, job_future, summary, reporter)
    del engines
    started = time.perf_counter()
    _assemble(job, summary, reporter)
    return {**times, "assemble": time.perf_counter() - started}


def _same(job: Job) -> Job:
    return job


def _worker_addresses(client: Client, num_workers: int) -> list[str]:
    workers = client.scheduler_info(n_workers=-1)["workers"]
    return sorted(workers, key=lambda address: str(workers[address]["name"]))[:num_workers]


# --- read, tokenise, plan ---


def _plan(
    client: Client, job: Job, job_future: Future, reporter: ProgressReporter
) -> tuple[PlanSummary, dict[str, float]]:
    num_parts = len(job.source.parts)
    parts = [
        client.submit(tokenise_part, job_future, i, key=f"tokenise-{job.sitting}-{i:05}", priority=-i)
        for i in range(num_parts)
    ]
    plan = client.submit(plan_run, job_future, parts, key=f"plan-{job.sitting}")
    reporter.update(Progress("read", 0, num_parts, "parts"))
    for num_done, (future, _) in enumerate(as_completed(parts, with_results=True, raise_errors=False), 1):
        _raise_failure(future, "reading and tokenising")
        reporter.update(Progress("read", num_done, num_parts, "parts"))
    reporter.update(Progress("plan", 0, job.source.num_rows, "rows"))
    result = _result(plan, "planning")
    reporter.update(Progress("plan", job.source.num_rows, job.source.num_rows, "rows"))
    return result


# --- infer ---


def _infer(client: Client, job: Job, job_future: Future, summary: PlanSummary, reporter: ProgressReporter) -> None:
    units = range(summary.num_units)
    done = [unit for unit in units if job.directory.is_unit_done(unit)]
    todo = sorted(set(units) - set(done))
    if done:
        reporter.note(f"{len(done)} of {len(units)} units are finished already")
    tracker = ProgressTracker(
        summary, job.pipeline.sampling.max_tokens, [read_unit_facts(job.directory.unit_file(unit)) for unit in done]
    )
    client.subscribe_topic(job.topic, lambda event: tracker.on_sample(event[1]))
    try:
        _feed(client, job, job_future, todo, lambda: reporter.update(tracker.progress()), _depth(client, job, summary))
    finally:
        client.unsubscribe_topic(job.topic)


def _depth(client: Client, job: Job, summary: PlanSummary) -> int:
    """Units in flight per worker: enough rows to fill the batch twice, within the worker's threads."""
    rows_per_unit = max(1, summary.num_rows // max(1, summary.num_units))
    wanted = -(-2 * job.pipeline.engine.max_sequences // rows_per_unit) + 1
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    return max(MIN_UNITS_IN_FLIGHT, min(wanted, *(w["nthreads"] for w in workers)))


def _feed(
    client: Client, job: Job, job_future: Future, todo: list[int], on_tick: Callable[[], None], depth: int
) -> None:
    ranges = UnitRanges(todo, job.num_workers)
    running: dict[Future, int] = {}  # future -> slot of the worker it was sent to
    while ranges.num_left or running:
        _fill(client, job, job_future, ranges, running, depth)
        time.sleep(POLL_SECONDS / 10 if len(running) == 0 else POLL_SECONDS)
        for future in [f for f in running if f.done()]:
            del running[future]
            _result(future, "inference")
        on_tick()


def _fill(
    client: Client, job: Job, job_future: Future, ranges: UnitRanges, running: dict[Future, int], depth: int
) -> None:
    for slot, address in enumerate(_worker_addresses(client, job.num_workers)):
        while sum(s == slot for s in running.values()) < depth and (unit := ranges.take(slot)) is not None:
            # Should the worker die, Dask runs the unit on another one.
            future = client.submit(
                infer_unit, job_future, unit, key=f"infer-{job.sitting}-{unit:06}",
                workers=[address], allow_other_workers=True, priority=-unit,
            )  # fmt: skip
            running[future] = slot


# --- assemble ---


def _assemble(job: Job, summary: PlanSummary, reporter: ProgressReporter) -> None:
    total = summary.num_rows
    reporter.update(Progress("assemble", 0, total, "rows"))
    assemble(
        job.source,
        job.directory.units,
        job.directory.output,
        lambda num_rows: reporter.update(Progress("assemble", num_rows, total, "rows")),
    )


# --- failures ---


def _raise_failure(future: Future, stage: str) -> None:
    if future.status != "finished":
        _result(future, stage)


def _result(future: Future, stage: str) -> Any:
    """The task's result, or the error that the command line shows."""
    try:
        return future.result()
    except BatchpagedError:
        raise
    except KilledWorker as error:
        raise UnfinishedError(
            f"{stage}: a worker died several times in a row, most likely for want of memory; finished units are kept. "
            "Lower engine.kv_cache or engine.max_batch_tokens and run the same command again"
        ) from error
    except (OSError, MemoryError, RuntimeError) as error:
        raise UnfinishedError(
            f"{stage} stopped: {type(error).__name__}: {error}; finished units are kept, run the same command again"
        ) from error
