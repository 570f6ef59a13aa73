"""What failed tasks mean to the run."""

from collections.abc import Sequence
from concurrent.futures import CancelledError
from typing import Any

from distributed import Future
from distributed.scheduler import KilledWorker

from batchpaged.errors import BatchpagedError, UnfinishedError


def raise_failures(futures: Sequence[Future], stage: str) -> None:
    for future in futures:
        if future.status in ("error", "cancelled"):  # not "lost": Dask computes again what went with a worker
            result_of(future, stage)


def result_of(future: Future, stage: str) -> Any:
    """The task's result, or the error that the command line shows."""
    try:
        return future.result()
    except BatchpagedError:
        raise
    except CancelledError as error:
        raise UnfinishedError("the connection to the Dask cluster was lost; run the same command again") from error
    except (KilledWorker, MemoryError) as error:
        what = "a worker died several times in a row, most likely" if isinstance(error, KilledWorker) else "stopped"
        raise UnfinishedError(
            f"{stage}: {what} for want of memory. "
            "Lower engine.kv_cache or engine.max_batch_tokens and run the same command again"
        ) from error
    except (OSError, RuntimeError) as error:
        raise UnfinishedError(
            f"{stage} stopped: {type(error).__name__}: {error}; run the same command again"
        ) from error
