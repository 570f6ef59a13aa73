"""What `--retry-failed` opens again: of a run, or of its stages."""

from collections.abc import Sequence
from dataclasses import dataclass

from batchpaged.planning.plan_file import has_plan, read_plan
from batchpaged.run.directory import RunDirectory
from batchpaged.run.failed_rows import FailedRows, find_failed_rows


@dataclass(frozen=True)
class Retry:
    places: tuple[tuple[RunDirectory, FailedRows], ...] = ()  # the run; or its stages that have a plan, in order

    @property
    def is_empty(self) -> bool:
        return not any(failed.units for _, failed in self.places)

    def begin(self, whole: RunDirectory) -> None:
        """Open what has to be; whatever ends this, the run can go on.

        Units with such rows in the first stage that has any; the stages after it begin anew, since their rows see others.
        """
        if self.is_empty:
            return
        whole.report.unlink(missing_ok=True)
        first = next(i for i, (_, failed) in enumerate(self.places) if failed.units)
        for directory, _ in reversed(self.places[first + 1 :]):
            directory.set_all_aside()
        directory, failed = self.places[first]
        directory.set_aside(failed.units)

    def notes(self) -> list[str]:
        """In words: how many rows, and in which stage. A later stage's rows without a prompt may get one."""
        lines = []
        for i, (directory, failed) in enumerate(self.places):
            where = f"stage {directory.path.name}: " * (len(self.places) > 1)
            num_without = failed.num_without_prompt * (i == 0)
            without = f"; {num_without} more have no prompt and would fail again" * bool(num_without)
            lines += [f"{where}failed rows that are computed again: {failed.num_retried}{without}"]
        return lines


def find_retry(directory: RunDirectory, stages: Sequence[str]) -> Retry:
    """`stages`: their names; none: a run without."""
    places = [directory.of_stage(stage) for stage in stages] or [directory]
    planned = [place for place in places if has_plan(place.path)]
    return Retry(tuple((place, find_failed_rows(place, read_plan(place.path)[0].num_units)) for place in planned))
