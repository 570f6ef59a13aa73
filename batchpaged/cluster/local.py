"""Where the work is done: a local Dask cluster for this run, or one that is running already."""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import dask
from distributed import Client, LocalCluster

from batchpaged.config import ClusterConfig
from batchpaged.errors import ClusterError

CONNECT_SECONDS = 20
# Tasks that wait for the engine hold a thread each; so many units can be in flight on a local worker.
THREADS_PER_WORKER = 10


def num_local_workers(config: ClusterConfig, device: str) -> int:
    """One per GPU, else one with all cores."""
    if isinstance(config.workers, int):
        return config.workers
    if device == "cpu":
        return 1
    import torch

    return max(1, torch.cuda.device_count())


def num_workers(client: Client, config: ClusterConfig) -> int:
    """Workers that this run uses: all of the cluster's, or as many as the pipeline file says."""
    available = len(client.scheduler_info(n_workers=-1)["workers"])
    return available if config.workers == "auto" else min(config.workers, available)


@contextmanager
def connect(config: ClusterConfig, device: str) -> Iterator[Client]:
    """A client of the run's cluster. A local cluster ends with the block; a running one is left as it was."""
    if config.scheduler is not None:
        with _remote_client(config.scheduler) as client:
            yield client
        return
    with _quiet(), _without_main_module(), dask.config.set(_local_settings()):
        num_workers = num_local_workers(config, device)
        with (
            LocalCluster(
                n_workers=num_workers,
                threads_per_worker=THREADS_PER_WORKER,
                processes=True,
                host="127.0.0.1",
                dashboard_address="127.0.0.1:0",  # its own port: the usual one may be another cluster's
                memory_limit=0,  # most of a worker's memory is the KV cache, which Dask could neither spill nor shrink
                silence_logs=logging.CRITICAL,
            ) as cluster,
            Client(cluster) as client,
        ):
            yield client


def _local_settings() -> dict[str, object]:
    # Dask pins its workers' math libraries to one thread; an engine uses all of its cores.
    num_threads = str(os.cpu_count() or 1)
    spawn = {"OMP_NUM_THREADS": num_threads, "MKL_NUM_THREADS": num_threads, "OPENBLAS_NUM_THREADS": num_threads}
    return {
        "distributed.nanny.pre-spawn-environ": {**spawn, "TOKENIZERS_PARALLELISM": "true"},
        "distributed.worker.daemon": True,
    }


@contextmanager
def _without_main_module() -> Iterator[None]:
    """Started worker processes do not run the caller's script again.

    multiprocessing would import it, which asks for an `if __name__ == "__main__"` guard in every script that calls `run`;
    our tasks need nothing of it. Holds for the whole block, since a worker that dies is started again.
    """
    main = sys.modules["__main__"]
    hidden = {name: vars(main).get(name) for name in ("__file__", "__spec__") if name in vars(main)}
    for name in hidden:
        setattr(main, name, None)
    try:
        yield
    finally:
        for name, value in hidden.items():
            setattr(main, name, value)


@contextmanager
def _quiet() -> Iterator[None]:
    """Dask logs every lost connection of a cluster that is being taken down; its errors reach us as exceptions."""
    logger = logging.getLogger("distributed")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def _remote_client(scheduler: str) -> Client:
    is_file = os.path.isfile(scheduler)
    try:
        client = Client(**({"scheduler_file": scheduler} if is_file else {"address": scheduler}), timeout=CONNECT_SECONDS)
    except (OSError, ValueError, TimeoutError) as error:
        raise ClusterError(
            f"no Dask scheduler answers at cluster.scheduler = {scheduler!r} ({type(error).__name__}); "
            "give the address or the scheduler file of a running cluster, or null for a local one"
        ) from error
    if not client.scheduler_info(n_workers=-1)["workers"]:
        client.close()
        raise ClusterError(f"the Dask cluster at {scheduler!r} has no workers; start some with `dask worker`")
    return client
