"""From a run directory that is open to its output: the work between the checks and the report."""

import time
from dataclasses import dataclass

from distributed import Client

from batchpaged.cluster.engines import Engines
from batchpaged.cluster.graph import run_graph
from batchpaged.cluster.job import Job
from batchpaged.cluster.local import count_workers
from batchpaged.errors import StoppedError
from batchpaged.planner import known_model_cost
from batchpaged.prepare import Prepared
from batchpaged.run.collect import Sitting
from batchpaged.run.directory import RunDirectory
from batchpaged.run.progress import ProgressReporter
from batchpaged.run.stopping import StopRequest
from batchpaged.run.stored import Keeper


@dataclass(frozen=True)
class Work:
    """What all stages of a run have in common."""

    client: Client
    prepared: Prepared  # of the whole pipeline
    keeper: Keeper
    reporter: ProgressReporter
    stop: StopRequest


def make_job(
    work: Work,
    prepared: Prepared,
    directory: RunDirectory,
    run_id: str,
    sitting: str,
    engine_of: str | None = None,
    stages_left: tuple[str, ...] = (),
) -> Job:
    """`prepared` is the run's, or a stage's; `engine_of` and `stages_left` as in Job."""
    num_workers, num_per_host = count_workers(work.client, prepared.pipeline.cluster)
    return Job(
        pipeline=prepared.pipeline,
        source=prepared.source,
        model=prepared.model,
        run_id=run_id,
        sitting=sitting,
        run_path=str(directory.path.resolve()),
        num_workers=num_workers,
        num_workers_per_host=num_per_host,
        adapters=prepared.adapters,
        engine_of=engine_of,
        stages_left=stages_left,
    )


def compute(work: Work, engines: Engines, job: Job, prepared: Prepared, started: float) -> None:
    """What earlier sittings finished is kept. `started`: time.perf_counter() from which this sitting's time counts."""
    cost = lambda: known_model_cost(prepared)  # noqa: E731
    seconds: dict[str, float] = {}
    try:
        run_graph(work.client, job, engines, work.keeper, work.reporter, cost, work.stop, seconds)
    except StoppedError:
        _record(job, seconds, started)
        raise
    job.directory.remove_half_files()  # of workers that were killed
    _record(job, seconds, started)


def _record(job: Job, seconds: dict[str, float], started: float) -> None:
    Sitting({**seconds, "total": time.perf_counter() - started}).write(job.directory.sittings, job.sitting)
