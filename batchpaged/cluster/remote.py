"""A Dask cluster that is running already, by its address or scheduler file."""

import importlib.metadata
import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from distributed import Client, Lock, TimeoutError

from batchpaged.errors import ClusterError

CONNECT_SECONDS = 20
# A client that was killed loses its hold on the cluster half a minute later.
BUSY_SECONDS = 60


@contextmanager
def remote_client(scheduler: str, note: Callable[[str], None]) -> Iterator[Client]:
    """A client with the cluster to itself: engines of two runs would fight for the memory of its workers.

    Raises ClusterError: nothing answers, no workers, another run is there, or workers have another version.
    """
    with closing(_connect(scheduler)) as client:
        if not client.scheduler_info(n_workers=-1)["workers"]:
            raise ClusterError(f"the Dask cluster at {scheduler!r} has no workers; start some with `dask worker`")
        _check_versions(client, scheduler)
        lock = _acquire(client, scheduler, note)
        try:
            yield client
        finally:
            lock.release()


def _connect(scheduler: str) -> Client:
    place = {"scheduler_file": scheduler} if os.path.isfile(scheduler) else {"address": scheduler}
    try:
        return Client(**place, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise ClusterError(
            f"no Dask scheduler answers at cluster.scheduler = {scheduler!r} ({type(error).__name__}); "
            "give the address or the scheduler file of a running cluster, or null for a local one"
        ) from error


def _version() -> str:
    return importlib.metadata.version("batchpaged")


def _check_versions(client: Client, scheduler: str) -> None:
    try:
        others = {address: version for address, version in client.run(_version).items() if version != _version()}
    except Exception as error:  # whatever a worker without batchpaged, or with another Python, raises
        raise ClusterError(
            f"workers of the Dask cluster at {scheduler!r} cannot run batchpaged ({type(error).__name__}: {error}); "
            "start them in an environment like this one"
        ) from error
    if others:
        raise ClusterError(
            f"workers of the Dask cluster at {scheduler!r} have batchpaged {others}, here it is {_version()}"
        )


def _acquire(client: Client, scheduler: str, note: Callable[[str], None]) -> Lock:
    lock = Lock("batchpaged", scheduler_rpc=client.scheduler, loop=client.loop)
    if not lock.acquire(timeout="1s"):
        note(f"the Dask cluster at {scheduler!r} is busy with another run; waiting for up to {BUSY_SECONDS} s")
        if not lock.acquire(timeout=f"{BUSY_SECONDS}s"):
            raise ClusterError(f"the Dask cluster at {scheduler!r} is busy with another run; wait until that is done")
    return lock
