"""`max_failed_rows`: a run that fails row after row is stopped before the night is over."""

import pyarrow as pa
import pyarrow.compute as pc

from batchpaged.errors import UnfinishedError
from batchpaged.run.directory import RunDirectory
from batchpaged.run.failed_rows import frequent_reasons, most_frequent_reasons

NUM_REASONS = 5


class FailureLimit:
    """Of a run, counted by the client."""

    def __init__(self, limit: int | None, directory: RunDirectory) -> None:
        """`limit`: failed rows that are borne; None: any number."""
        self._limit = limit
        self._directory = directory
        self._num_failed = 0

    def add(self, num_failed: int) -> None:
        """Count failed rows. Raises UnfinishedError once there are more than the pipeline allows."""
        self._num_failed += num_failed
        if self._limit is not None and self._num_failed > self._limit:
            raise _too_many(self._num_failed, self._limit, most_frequent_reasons(self._directory, NUM_REASONS))


class PartLimit:
    """Of a part while it is tokenised: a huge one alone can hold too many."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._failed: list[pa.Table] = []

    @property
    def num_failed(self) -> int:
        return sum(map(len, self._failed))

    def add(self, prompts: pa.Table) -> None:
        """Count what failed of some rows (PROMPTS_SCHEMA). Raises UnfinishedError as FailureLimit does."""
        failed = prompts.select(["status", "error"]).filter(pc.equal(prompts["status"], "failed"))
        self._failed.append(failed)
        if self._limit is not None and self.num_failed > self._limit:
            raise _too_many(self.num_failed, self._limit, frequent_reasons(pa.concat_tables(self._failed), NUM_REASONS))


def _too_many(num_failed: int, limit: int, reasons: list[str]) -> UnfinishedError:
    lines = "".join(f"\n  - {reason}" for reason in reasons)
    return UnfinishedError(
        f"{num_failed} rows have failed by now, and max_failed_rows is {limit}:{lines}\n"
        "Repair what is wrong and use --fresh, or raise max_failed_rows to go on"
    )
