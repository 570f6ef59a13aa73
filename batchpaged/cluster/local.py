"""Where the work is done: a local Dask cluster for this run, or (remote.py) one that is running already."""

import logging
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager
from multiprocessing import resource_tracker

import dask
from distributed import Client, LocalCluster, fire_and_forget

from batchpaged.cluster.libraries import import_engine
from batchpaged.cluster.remote import remote_client
from batchpaged.config import ClusterConfig
from batchpaged.errors import ClusterError

# Of a local worker. Tasks that wait for the engine hold none.
THREADS_PER_WORKER = 10
# Where nobody can ask who sent a SIGTERM, it ends a worker.
BLOCKED = [signal.SIGINT, *([signal.SIGTERM] if hasattr(signal, "sigwaitinfo") else [])]


def num_local_workers(config: ClusterConfig, device: str) -> int:
    """One per GPU, else one with all cores."""
    if isinstance(config.workers, int):
        return config.workers
    if device == "cpu" or not _may_have_gpu():
        return 1
    import torch

    return max(1, torch.cuda.device_count())


def _may_have_gpu() -> bool:
    """Spares most machines without one the seconds that torch takes to tell."""
    return sys.platform != "linux" or any(map(os.path.exists, ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")))


def count_workers(client: Client, config: ClusterConfig) -> tuple[int, int]:
    """Workers that the run uses (all of the cluster's, or what the pipeline file says); the most that one host has."""
    hosts = [worker["host"] for worker in client.scheduler_info(n_workers=-1)["workers"].values()]
    num_workers = len(hosts) if config.workers == "auto" else min(config.workers, len(hosts))
    most = max(Counter(hosts).values(), default=1)
    return max(1, num_workers), max(1, min(num_workers, most))


@contextmanager
def connecting(config: ClusterConfig, device: str, note: Callable[[str], None]) -> Iterator[Callable[[], Client]]:
    """Gives the block what waits for the run's client. A local cluster starts meanwhile and ends with the block.

    A running cluster is asked when its client is, and left as it was; ClusterError says why it cannot be used, and
    `note` gets a line for what takes long there.
    """
    with _quiet(), ExitStack() as stack:
        if config.scheduler is not None:
            yield lambda: stack.enter_context(remote_client(config.scheduler, note))
            return
        num_workers = num_local_workers(config, device)
        client: Future[Client] = Future()
        thread = threading.Thread(target=_start_local, args=(stack, num_workers, client), daemon=True)
        thread.start()
        try:
            yield client.result
        finally:
            thread.join()


def _start_local(stack: ExitStack, num_workers: int, result: "Future[Client]") -> None:
    try:
        _block_signals()
        client = stack.enter_context(_local_client(num_workers))
        for address in client.scheduler_info(n_workers=-1)["workers"]:  # seconds of work, with nothing else to do yet
            fire_and_forget(client.submit(import_engine, workers=[address], pure=False))
        result.set_result(client)
    except Exception as error:  # whatever Dask raises; it is told where the client is wanted
        failure = ClusterError(f"the local Dask cluster did not start ({type(error).__name__}: {error})")
        failure.__cause__ = error
        result.set_exception(failure)


def _block_signals() -> None:
    """Ctrl-C and `timeout` reach every process of the run, but the client alone decides what becomes of it: see worker_signals.

    Threads and processes inherit what is blocked: from this thread the cluster's, from them the workers.
    """
    if hasattr(signal, "pthread_sigmask"):
        resource_tracker.ensure_running()  # it unblocks both in the thread that starts it
        signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)


@contextmanager
def _local_client(num_workers: int) -> Iterator[Client]:
    with (
        _without_main_module(),
        dask.config.set(_local_settings()),
        LocalCluster(
            n_workers=num_workers,
            threads_per_worker=THREADS_PER_WORKER,
            processes=True,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",  # its own port: the usual one may be another cluster's
            memory_limit=0,  # most of a worker's memory is the KV cache, which Dask could neither spill nor shrink
            silence_logs=logging.CRITICAL,
        ) as cluster,
        closing(Client(cluster, set_as_default=False)) as client,  # the default is another thread's business
    ):
        yield client


def _local_settings() -> dict[str, object]:
    # Dask pins its workers' math libraries to one thread; an engine uses all of its cores.
    num_threads = str(os.cpu_count() or 1)
    spawn = {"OMP_NUM_THREADS": num_threads, "MKL_NUM_THREADS": num_threads, "OPENBLAS_NUM_THREADS": num_threads}
    return {
        "distributed.nanny.pre-spawn-environ": {**spawn, "TOKENIZERS_PARALLELISM": "true"},
        "distributed.worker.daemon": True,
        "distributed.worker.preload": ["batchpaged.cluster.worker_signals"],
        # Dask looks at every thread a hundred times a second, for a page that nobody sees; a step takes all of the processor.
        "distributed.worker.profile.enabled": False,
    }


@contextmanager
def _without_main_module() -> Iterator[None]:
    """Started worker processes do not run the caller's script again.

    multiprocessing would import it, which asks for an `if __name__ == "__main__"` guard in every script that calls `run`;
    our tasks need nothing of it. Holds for the whole block, since a worker that dies is started again.
    """
    main = sys.modules["__main__"]
    attributes = vars(main)
    hidden = {name: attributes[name] for name in ("__file__", "__spec__") if name in attributes}
    attributes.pop("__file__", None)  # not None: `inspect` takes that for a broken module when it looks for another one
    main.__spec__ = None
    try:
        yield
    finally:
        attributes.update(hidden)


@contextmanager
def _quiet() -> Iterator[None]:
    """Dask logs every lost connection and every failed task; to us they come as results."""
    names = [name for name in logging.root.manager.loggerDict if name.split(".")[0] in ("distributed", "tornado")]
    loggers = [logging.getLogger(name) for name in names]  # each has a level of its own
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
