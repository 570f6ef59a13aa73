"""The Dask graph of a run, or of one of its stages, whole.

    count part 0 ─┐
    count part 1 ─┼─> merge counts ─> tokenise ...      with prompt.reorder only
    ...          ─┘

    tokenise part 0 ─┐   sort run 0 ─┐                order partition 0 ─┐   write partition 0 ─┐
    tokenise part 1 ─┼─> sort run 1 ─┼─> splitters ─> order partition 1 ─┼─> write partition 1 ─┼─> plan
    ...             ─┘   ...        ─┘                ...               ─┘   ...               ─┘

    plan ─> unit 0, unit 1, ... on the first worker  ─┐
            ...                                       ├─> assemble
            unit n, unit n+1, ... on the last worker ─┘

Every task checks first whether its result is on disk already, so that Dask may run any of them again. How units are handed
out is in inference.py, who computes them in engines.py.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

from distributed import Client, Future, as_completed

from batchpaged.cluster.count_tasks import count_part, load_reorder, merge_parts
from batchpaged.cluster.engines import Engines, same
from batchpaged.cluster.failure_limit import FailureLimit
from batchpaged.cluster.failures import raise_failures, result_of
from batchpaged.cluster.inference import Inference
from batchpaged.cluster.job import Job
from batchpaged.cluster.prompt_tasks import plan_run, plan_step, tokenise_part
from batchpaged.dataset.schema import output_columns
from batchpaged.dataset.sink import assemble
from batchpaged.dataset.source import refuse_if
from batchpaged.errors import InputError, StoppedError
from batchpaged.planning.cost import ModelCost
from batchpaged.planning.plan_file import has_plan, read_plan
from batchpaged.planning.planner import Each
from batchpaged.planning.summary import PlanSummary
from batchpaged.run.progress import Progress, ProgressReporter
from batchpaged.run.stopping import StopRequest, waiting
from batchpaged.run.stored import Keeper
from batchpaged.run.taken_over import take_over


def run_graph(
    client: Client,
    job: Job,
    engines: Engines,
    keeper: Keeper,
    reporter: ProgressReporter,
    model_cost: Callable[[], ModelCost | None],
    stop: StopRequest,
    times: dict[str, float],
) -> None:
    """Run every stage that is not done yet; results are in the run directory. Seconds of each stage that ends go into `times`.

    `keeper` is told of plan and units as they are committed.
    `model_cost` is asked if there is something to plan. Raises StoppedError if `stop` is set while units are computed, and some are left.
    """
    if stop.is_set:  # while the last units of the stage before were computed
        left = waiting(0, job.stages_left) if job.stages_left else "no unit was begun"
        raise StoppedError(f"stopped as asked: {left}")
    job_future = client.submit(same, job, pure=False)
    summary = _plan(client, job, job_future, engines.futures, reporter, model_cost, times)
    _take_over(job, summary, reporter)
    keeper.keep_all()
    Inference(client, job, job_future, engines, summary, keeper, reporter).run(stop)
    keeper.keep_all()  # a store that is gone is said before its input is asked for again
    started = time.perf_counter()
    _assemble(job, summary, reporter)
    times["assemble"] = time.perf_counter() - started


# --- read, tokenise, plan ---


def _plan(
    client: Client,
    job: Job,
    job_future: Future,
    engines: Sequence[Future],
    reporter: ProgressReporter,
    model_cost: Callable[[], ModelCost | None],
    times: dict[str, float],
) -> PlanSummary:
    if has_plan(job.directory.path):
        return read_plan(job.directory.path)[0]
    num_parts = len(job.source.parts)
    counted = _count_documents(client, job, job_future)
    parts = [
        client.submit(tokenise_part, job_future, i, counted, key=f"tokenise-{job.sitting}-{i:05}", priority=-i)
        for i in range(num_parts)
    ]
    reporter.update(Progress("read", 0, num_parts, "parts"))
    raise_failures([counted] if counted else [], "counting documents")
    cost = model_cost()  # while the workers read
    problems: list[str] = []
    failures = FailureLimit(job.pipeline.max_failed_rows, job.directory)
    for num_done, (future, facts) in enumerate(as_completed(parts, with_results=True, raise_errors=False), 1):
        problems += _input_problems(future)
        failures.add(facts["num_failed"] if future.status == "finished" else 0)
        raise_failures(engines, "loading the model")
        reporter.update(Progress("read", num_done, num_parts, "parts"))
    refuse_if(list(dict.fromkeys(problems)))
    reporter.update(Progress("plan", 0, job.source.num_rows, "rows"))
    seconds = [result_of(part, "reading and tokenising") for part in parts]
    started = time.perf_counter()
    summary = plan_run(job, cost, _on_workers(client, job, engines))
    times |= {key: sum(s[key] for s in seconds) for key in ("read", "tokenize")}
    times["plan"] = time.perf_counter() - started
    reporter.update(Progress("plan", job.source.num_rows, job.source.num_rows, "rows"))
    return summary


def _input_problems(future: Future) -> list[str]:
    """What is wrong with the part, if it cannot be read: the others are looked at all the same. Raises anything else."""
    error = future.exception() if future.status == "error" else None
    if isinstance(error, InputError):
        return list(error.problems)
    raise_failures([future], "reading and tokenising")
    return []


def _on_workers(client: Client, job: Job, engines: Sequence[Future]) -> Each:
    """Runs the steps of a stage of planning as tasks."""

    def each(function: Callable[..., Any], items: Sequence[tuple[Any, ...]]) -> list[Any]:
        futures = [
            client.submit(plan_step, function, *item, key=f"{function.__name__}-{job.sitting}-{i:05}", priority=-i)
            for i, item in enumerate(items)
        ]
        for future, _ in as_completed(futures, with_results=True, raise_errors=False):
            raise_failures([future], "planning")
            raise_failures(engines, "loading the model")
        return [result_of(future, "planning") for future in futures]

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


def _take_over(job: Job, summary: PlanSummary, reporter: ProgressReporter) -> None:
    """Of a stage whose input has changed, rows that need not be computed."""
    if not job.directory.earlier.exists:
        return
    num_kept = take_over(job.directory, summary.num_units, output_columns(job.pipeline.sampling))
    reporter.note(f"{num_kept} rows have the prompt that they had, and are kept")


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
        output_columns(job.pipeline.sampling),
    )
