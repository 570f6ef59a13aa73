"""`max_failed_rows`: a run that fails row after row is stopped before the night is over."""

from batchpaged.errors import UnfinishedError
from batchpaged.run.directory import RunDirectory
from batchpaged.run.failed_rows import most_frequent_reasons

NUM_REASONS = 5


class FailureLimit:
    def __init__(self, limit: int | None, directory: RunDirectory) -> None:
        """`limit`: failed rows that are borne; None: any number."""
        self._limit = limit
        self._directory = directory
        self._num_failed = 0

    def add(self, num_failed: int) -> None:
        """Count failed rows. Raises UnfinishedError once there are more than the pipeline allows."""
        self._num_failed += num_failed
        if self._limit is None or self._num_failed <= self._limit:
            return
        reasons = "".join(f"\n  - {reason}" for reason in most_frequent_reasons(self._directory, NUM_REASONS))
        raise UnfinishedError(
            f"{self._num_failed} rows have failed by now, and max_failed_rows is {self._limit}:{reasons}\n"
            "Repair what is wrong and use --fresh, or raise max_failed_rows to go on"
        )
