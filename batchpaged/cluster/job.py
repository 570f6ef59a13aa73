"""What every task of a run is given."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from batchpaged.config import Pipeline
from batchpaged.dataset.source import Source
from batchpaged.errors import UnfinishedError
from batchpaged.models.adapters import Adapter
from batchpaged.models.resolve import ResolvedModel
from batchpaged.run.directory import RunDirectory


@dataclass(frozen=True)
class Job:
    """Picklable, small, and the same for all tasks of one sitting."""

    pipeline: Pipeline
    source: Source
    model: ResolvedModel
    run_id: str
    sitting: str  # one start of the run; a run that was interrupted has several
    run_path: str  # absolute
    num_workers: int
    num_workers_per_host: int  # they share its cores
    adapters: tuple[Adapter, ...] = ()  # in the order of their numbers
    engine_of: str | None = None  # the sitting whose engines it uses; None: its own
    stages_left: tuple[str, ...] = ()  # names of this stage and those after it; none where the run has no stages

    @cached_property
    def directory(self) -> RunDirectory:
        return RunDirectory(Path(self.run_path))

    @property
    def engine(self) -> str:
        """Names the engines of all stages of a run, for as long as one client runs them."""
        return self.engine_of or self.sitting

    @property
    def topic(self) -> str:
        """Of the Dask events on which workers report progress."""
        return f"batchpaged-{self.sitting}"

    def check_is_current(self) -> None:
        """Raises UnfinishedError if the run directory has been given to another run, with --fresh.

        On a cluster that outlives its clients, a task can outlive the client that sent it.
        """
        version = self.directory.version
        if version is not None and version in self._current_versions:
            return
        if version is None or self.directory.info()["run_id"] != self.run_id:
            raise UnfinishedError(f"{self.run_path} holds another run by now; this one has ended")
        self._current_versions.add(version)

    @cached_property
    def _current_versions(self) -> set[tuple[int, int]]:
        """Of run.json, that were looked at."""
        return set()
