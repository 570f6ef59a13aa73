"""Values that are equal but for white space, invisible characters or Unicode form.

Without the cause, each passage is written everywhere as it is written most often.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator

from batchpaged.planning.diagnosis.examination import Examination, Version
from batchpaged.planning.diagnosis.fields import Place, change_texts
from batchpaged.planning.diagnosis.passages import name_differences, normalise, sentences
from batchpaged.planning.diagnosis.proposal import Proposal

_Passage = tuple[str, bool]  # as it is written; whether it ends a line inside its text
_Key = tuple[str, bool]  # the same, normalised
_RARE = 0.05  # of the most frequent difference: what is rarer is not named


def propose(examination: Examination, version: Version) -> Iterator[Proposal]:
    spellings, columns = _spellings(examination, version)
    several = {key: counts for key, counts in spellings.items() if len(counts) > 1}
    if not several:
        return
    best = {passage: _most_often(counts, key[0]) for key, counts in several.items() for passage in counts}

    def respell(row: int, place: Place, text: str) -> str:
        return "".join(best.get(passage, passage)[0] for passage in _passages(text))

    table = change_texts(version.table, examination.config, examination.columns, respell)
    names = ", ".join(sorted(set().union(*(columns[key] for key in several))))
    yield Proposal(
        cause="whitespace",
        version=Version(table, version.moved),
        what=f"passages in {names} that are otherwise equal differ in {' and '.join(_differences(several))}",
        way_out=f"normalise {names} before the run: NFC, plain spaces, \\n line ends, no stray spaces",
    )




def _spellings(
    examination: Examination, version: Version
) -> tuple[dict[_Key, Counter[_Passage]], dict[_Key, set[str]]]:
    """How each passage is written, and in which columns it stands."""
    spellings: dict[_Key, Counter[_Passage]] = defaultdict(Counter)
    columns: dict[_Key, set[str]] = defaultdict(set)
    keys: dict[_Passage, _Key] = {}

    def visit(row: int, place: Place, text: str) -> str:
        for passage in _passages(text):
            if passage not in keys:
                keys[passage] = (normalise(passage[0]), passage[1])
            spellings[keys[passage]][passage] += 1
            columns[keys[passage]].add(str(place[0]))
        return text

    change_texts(version.table, examination.config, examination.columns, visit)
    return spellings, columns


def _differences(several: dict[_Key, Counter[_Passage]]) -> list[str]:
    """In words, what most of the passages that are not written as usual differ in."""
    weights: Counter[str] = Counter()
    for counts in several.values():
        for name in name_differences({text for text, _ in counts}):
            weights[name] += counts.total() - max(counts.values())
    return sorted(name for name, weight in weights.items() if weight >= _RARE * max(weights.values()))


def _passages(text: str) -> list[_Passage]:
    """Whether a passage ends a line is no mere difference in white space; what ends a text ends it anyway."""
    pieces = sentences(text)
    return [(piece, i < len(pieces) - 1 and "\n" in piece) for i, piece in enumerate(pieces)]


def _most_often(counts: Counter[_Passage], normal: str) -> _Passage:
    """Of two that are as frequent, the one that is normal already."""
    return max(counts, key=lambda passage: (counts[passage], passage[0].strip() == normal))
