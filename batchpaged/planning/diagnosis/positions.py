"""The first lines, or sentences, of the texts that stand in the same place in every row."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pyarrow as pa

from batchpaged.dataset.messages import shown_role
from batchpaged.planning.diagnosis.examination import Examination, Version
from batchpaged.planning.diagnosis.fields import Place, change_texts, read_texts
from batchpaged.planning.diagnosis.passages import Cut

MAX_POSITIONS = 8  # of one text, from its start: instructions stand at the head

Position = tuple[Place, int]  # a text, and which of its passages


@dataclass(frozen=True)
class Heads:
    """How each row's texts begin, cut one way."""

    unit: str  # what a passage is called
    cut: Cut
    rows: list[dict[Position, str]]  # per row, the passage at each position

    @property
    def positions(self) -> list[Position]:
        """In the order of the prompt."""
        return sorted({position for row in self.rows for position in row})


def read_heads(examination: Examination, version: Version, unit: str, cut: Cut) -> Heads:
    rows = [
        {(place, k): passage for place, text in row.items() for k, passage in _head(place, text, examination, cut)}
        for row in read_texts(version.table, examination.config, examination.columns)
    ]
    return Heads(unit, cut, rows)


def _head(place: Place, text: str, examination: Examination, cut: Cut) -> Iterable[tuple[int, str]]:
    return enumerate(cut(text)[:MAX_POSITIONS]) if _is_fixed(place, examination) else ()


def _is_fixed(place: Place, examination: Examination) -> bool:
    """A column of its own or a message; not an item of a list, whose place depends on the row."""
    return len(place) == 1 or examination.config.messages_column is not None


def change_heads(
    examination: Examination, version: Version, cut: Cut, change: Callable[[int, Position, str], str]
) -> pa.Table:
    """The table with every head passage as `change` (row, position, passage) gives it back."""

    def visit(row: int, place: Place, text: str) -> str:
        if not _is_fixed(place, examination):
            return text
        pieces = cut(text)
        head = (change(row, (place, k), piece) for k, piece in enumerate(pieces[:MAX_POSITIONS]))
        return "".join([*head, *pieces[MAX_POSITIONS:]])

    return change_texts(version.table, examination.config, examination.columns, visit)


def name_position(heads: Heads, position: Position) -> str:
    """`line 2 of message 1, system`, `sentence 1 of instruction`; a whole text by its name alone."""
    place, k = position
    text = str(place[0]) if len(place) == 1 else f"message {int(place[1]) + 1}, {shown_role(str(place[2]))}"
    return text if heads.unit == "text" else f"{heads.unit} {k + 1} of {text}"
