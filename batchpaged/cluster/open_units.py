"""The units that an engine is computing, and which of their rows are done."""

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from batchpaged.clock import now
from batchpaged.cluster.fan_out import equal_rows, fanned_out
from batchpaged.cluster.serving import UnitOutcome, UnitRow
from batchpaged.engine.engine import Completion

Tag = tuple[int, int]  # index of the unit, place of the row in it


@dataclass
class OpenUnit:
    name: int  # its number in the plan
    row_ids: list[str]
    future: "Future[UnitOutcome]"
    started_at: float  # clock.now()
    rows: list[Completion | str | None]  # as in the outcome; None: not done
    num_open: int  # of these
    equal: dict[int, list[int]] = field(default_factory=dict)  # places of equal rows, by that of the first
    num_deduplicated: int = 0


class OpenUnits:
    """By index: they are numbered in the order in which they come."""

    def __init__(self) -> None:
        self.num_opened = 0  # since the engine's start
        self._units: dict[int, OpenUnit] = {}

    @property
    def is_empty(self) -> bool:
        return not self._units

    @property
    def num_rows(self) -> int:
        """Done or not."""
        return sum(len(unit.rows) for unit in self._units.values())

    @property
    def num_open(self) -> int:
        """Rows that are not done."""
        return sum(unit.num_open for unit in self._units.values())

    @property
    def futures(self) -> "list[Future[UnitOutcome]]":
        return [unit.future for unit in self._units.values()]

    def open(self, name: int, rows: Sequence[UnitRow], future: "Future[UnitOutcome]", fans_out: bool) -> list[Tag]:
        """-> what is to be computed of it: with `fans_out` one of equal rows that follow each other, else every row"""
        index, self.num_opened = self.num_opened, self.num_opened + 1
        ids = [row.row_id for row in rows]
        unit = self._units[index] = OpenUnit(name, ids, future, now(), [None] * len(rows), len(rows))
        unit.equal = {places[0]: places for places in _computed_once(rows, fans_out)}
        return [(index, place) for place in unit.equal]

    def finish(self, tag: Tag, outcome: Completion | str) -> int:
        """The row that was computed is done, and those equal to it with it. -> how many"""
        unit = self._units[tag[0]]
        first, *others = unit.equal[tag[1]]
        unit.rows[first] = outcome
        for other in others:
            unit.rows[other] = fanned_out(outcome)
        unit.num_open -= 1 + len(others)
        unit.num_deduplicated += len(others)
        return 1 + len(others)

    def take_done(self) -> list[OpenUnit]:
        """Those without an open row; they are here no more."""
        done = [index for index, unit in self._units.items() if unit.num_open == 0]
        return [self._units.pop(index) for index in done]

    def clear(self) -> None:
        self._units.clear()

    def name_row(self, tag: Tag) -> str:
        unit = self._units[tag[0]]
        return f"unit {unit.name}, row {unit.row_ids[tag[1]]}"


def _computed_once(rows: Sequence[UnitRow], fans_out: bool) -> Iterable[list[int]]:
    if fans_out:
        return equal_rows([row.token_ids for row in rows], [row.kind for row in rows])
    return ([place] for place in range(len(rows)))
