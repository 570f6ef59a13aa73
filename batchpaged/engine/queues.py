"""Who waits, and who runs."""

from collections import deque
from collections.abc import Sequence as Some
from dataclasses import dataclass, field

from batchpaged.engine.sequence import Sequence, Status


@dataclass
class Queues:
    """Sequences that have not finished. The parts of the scheduler share one."""

    waiting: deque[Sequence] = field(default_factory=deque)
    running: list[Sequence] = field(default_factory=list)  # in order of admission; the last is preempted first

    def put_before(self, sequence: Sequence, others: Some[Sequence]) -> None:
        """These run too, and were admitted just before it."""
        at = self.running.index(sequence)
        self.running[at:at] = others

    def replace(self, old: Some[Sequence], new: Some[Sequence]) -> None:
        """Neighbours among those that run, by others in their place. Both begin with the same sequence."""
        at = self.running.index(old[0])
        self.running[at : at + len(old)] = new

    def drop_stopped(self) -> None:
        """Of those that run, those that do not any more."""
        self.running = [sequence for sequence in self.running if sequence.status is Status.RUNNING]
