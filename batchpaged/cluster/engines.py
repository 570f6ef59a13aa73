"""The engines of a sitting: one for each worker, for all stages of the run."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from distributed import Client, Future

from batchpaged.cluster.infer_tasks import start_engine, stop_engine
from batchpaged.cluster.job import Job
from batchpaged.cluster.worker_slots import WorkerSlots


@dataclass(frozen=True)
class Engines:
    slots: WorkerSlots
    futures: Sequence[Future]  # done when the model is there; of the workers that there were at the start


@contextmanager
def running_engines(client: Client, job: Job) -> Iterator[Engines]:
    """They load the model while the block reads and plans, and end with it. `job`: of the first stage that has work."""
    job_future = client.submit(same, job, pure=False)
    slots = WorkerSlots(job.num_workers)
    slots.update(workers(client))
    futures = [client.submit(start_engine, job_future, workers=[address], pure=False) for address in slots.addresses.values()]
    try:
        yield Engines(slots, futures)
    finally:
        _stop(client, job)


def same(job: Job) -> Job:
    """Sends a job to the cluster once, for all of its tasks."""
    return job


def workers(client: Client) -> dict[str, str]:
    """Name by address of the workers that the cluster has now."""
    return {address: str(worker["name"]) for address, worker in _worker_facts(client).items()}


def _worker_facts(client: Client) -> dict[str, dict[str, Any]]:
    return client.scheduler_info(n_workers=-1)["workers"]


def _stop(client: Client, job: Job) -> None:
    """A cluster that outlives the run gets its memory back."""
    try:
        client.run(stop_engine, job.engine, on_error="ignore")
    except Exception:  # the cluster is gone, and the engines with it; why the run ended is the better message
        pass
