"""A varying field (a timestamp, an id, a date, a name) that stands before a long part which rows share.

With templates a field is a printed expression; in chats and plain texts it is one of the first lines or sentences.
Without the cause, it stands at the end of the prompt's last text, on a line of its own.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from batchpaged.errors import RowError
from batchpaged.planning.diagnosis.examination import Examination, Version
from batchpaged.planning.diagnosis.fields import Place, change_texts
from batchpaged.planning.diagnosis.passages import Cut, lines, sentences
from batchpaged.planning.diagnosis.positions import Heads, Position, change_heads, name_position, read_heads
from batchpaged.planning.diagnosis.proposal import WORTH_SAYING, Proposal
from batchpaged.planning.diagnosis.sharing import share_texts

_MAX_FIELDS = 12  # that vary, from the start of the prompt
_MIN_SHARED_TOKENS = 24  # "long": a closing instruction of a line behind the question is in its right place
_MIN_SHARED_BYTES = 4 * _MIN_SHARED_TOKENS


@dataclass(frozen=True)
class _Field:
    name: str
    values: list[str]  # one per row; "" where the row has none


def propose(examination: Examination, version: Version) -> Iterator[Proposal]:
    if examination.config.user is not None:
        found = [_propose_expressions(examination, version)]
    else:
        found = [_propose_passages(examination, version, *cut) for cut in (("line", lines), ("sentence", sentences))]
    searches = [search for search in found if search is not None]
    if searches:
        yield max(searches, key=lambda search: search[0])[1]


# --- templates ---


def _propose_expressions(examination: Examination, version: Version) -> tuple[int, Proposal] | None:
    fields = _expressions(examination, version)

    def move(numbers: frozenset[int]) -> Version:
        return Version(version.table, version.moved | numbers)

    found = _Search(examination, version, fields, move).run()
    if found is None:
        return None
    num_saved, then, moved = found
    names = " and ".join(fields[number].name for number in moved)
    behind = _what_is_shared(fields, moved)
    return num_saved, _proposal(then, names, moved, behind, f"move {names} behind {behind}")


def _expressions(examination: Examination, version: Version) -> dict[int, _Field]:
    rows = examination.builder.values(version.table)
    fields = {}
    for _, first, parts in examination.parts:
        for i, name in enumerate(parts.printed):
            if first + i not in version.moved:
                render = parts.only(i).render
                fields[first + i] = _Field(name, [_try(render, values) for values in rows])
    return fields


def _try(render: Callable[[dict], str], values: dict) -> str:
    try:
        return render(values)
    except RowError:
        return ""


def _what_is_shared(fields: dict[int, _Field], moved: Sequence[int]) -> str:
    """The field behind the first moved one that makes up most of the prompt, if it is longer than a line."""
    behind = [field for number, field in fields.items() if number > moved[0] and number not in moved]
    longest = max(behind, key=lambda field: sum(map(len, field.values)), default=None)
    is_long = longest is not None and sum(map(len, longest.values)) >= _MIN_SHARED_BYTES * len(longest.values)
    return longest.name if is_long else "the fixed text that follows"


# --- chats and texts ---


def _propose_passages(
    examination: Examination, version: Version, unit: str, cut: Cut
) -> tuple[int, Proposal] | None:
    heads = read_heads(examination, version, unit, cut)
    positions = dict(enumerate(heads.positions))
    fields = {
        number: _Field(name_position(heads, position), [row.get(position, "") for row in heads.rows])
        for number, position in positions.items()
    }

    def move(numbers: frozenset[int]) -> Version:
        return _move_to_end(examination, version, heads, {positions[number] for number in numbers})

    found = _Search(examination, version, fields, move).run()
    if found is None:
        return None
    num_saved, then, moved = found
    names = " and ".join(fields[number].name for number in moved)
    way_out = f"write {names} behind the documents, at the end of the prompt"
    return num_saved, _proposal(then, names, moved, "longer text", way_out)


def _move_to_end(examination: Examination, version: Version, heads: Heads, moved: set[Position]) -> Version:
    taken: list[list[str]] = [[] for _ in heads.rows]

    def take_out(row: int, position: Position, passage: str) -> str:
        if position not in moved:
            return passage
        taken[row].append(passage.strip())
        return ""

    table = change_heads(examination, version, heads.cut, take_out)
    last = [max((place for place, _ in row), default=None) for row in heads.rows]

    def append(row: int, place: Place, text: str) -> str:
        return "\n".join([text, *taken[row]]) if place == last[row] else text

    return Version(change_texts(table, examination.config, examination.columns, append), version.moved)


def _proposal(then: Version, names: str, moved: Sequence[int], behind: str, way_out: str) -> Proposal:
    verbs = ("differs", "stands") if len(moved) == 1 else ("differ", "stand")
    return Proposal(
        cause="varying_field",
        version=then,
        what=f"{names} {verbs[0]} from row to row and {verbs[1]} before {behind}, which rows share",
        way_out=way_out,
        min_growth=_MIN_SHARED_TOKENS,
    )


# --- which fields to move ---


@dataclass(frozen=True)
class _Search:
    """Looks for the fields whose place costs most, by the bytes that the texts then share."""

    examination: Examination
    version: Version
    fields: dict[int, _Field]
    move: Callable[[frozenset[int]], Version]

    def run(self) -> tuple[int, Version, list[int]] | None:
        """-> (bytes saved, the rows with those fields at the end, which fields), if it is worth it."""
        varying = [number for number, field in self.fields.items() if len(set(field.values)) > 1][:_MAX_FIELDS]
        short = [number for number in varying if not self._is_shared_and_long(self.fields[number])]
        starts = {frozenset(group[: i + 1]) for group in (varying, short) for i in range(len(group))}
        tried = [(self._size(numbers), sorted(numbers)) for numbers in sorted(starts, key=sorted)]
        if not tried:
            return None
        moved = self._without_idle(frozenset(min(tried)[1]))
        then = self.move(moved)
        if not self._is_worth(self.version, then):
            return None
        return self.examination.compare_texts(self.version, then).num_saved, then, sorted(moved)

    def _is_shared_and_long(self, field: _Field) -> bool:
        sharing = share_texts([value.encode("utf-8", "surrogatepass") for value in field.values])
        return sharing.num_items - sharing.num_unique >= _MIN_SHARED_BYTES * len(field.values)

    def _without_idle(self, moved: frozenset[int]) -> frozenset[int]:
        """Without those fields that may as well stay where they are."""
        for number in sorted(moved, reverse=True):
            fewer = moved - {number}
            if fewer and not self._is_worth(self.move(fewer), self.move(moved)):
                moved = fewer
        return moved

    def _is_worth(self, now: Version, then: Version) -> bool:
        compared = self.examination.compare_texts(now, then)
        self.examination.forget_all_but([self.version])
        is_much = compared.num_saved >= WORTH_SAYING / 2 * compared.now.num_items
        return is_much and compared.mean_growth >= _MIN_SHARED_BYTES / 2

    def _size(self, moved: frozenset[int]) -> int:
        size = self.examination.compare_texts(self.version, self.move(moved)).then.num_unique
        self.examination.forget_all_but([self.version])
        return size
