"""Template variants: instructions that are written in a few ways which differ in a few characters.

Without the cause, all are written as the most frequent one. Two versions of one document look like variants too, and
so do a few questions asked of every document. So instructions have to stand at the head, after text that hardly varies,
and what is saved has to be more than the variants themselves: it is what follows them that is lost.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from difflib import SequenceMatcher

from batchpaged.planning.diagnosis.examination import Examination, Version
from batchpaged.planning.diagnosis.passages import lines, sentences, whole
from batchpaged.planning.diagnosis.positions import Heads, Position, change_heads, name_position, read_heads
from batchpaged.planning.diagnosis.proposal import WORTH_SAYING, Proposal
from batchpaged.planning.diagnosis.sharing import num_common

_CUTS = (("text", whole), ("line", lines), ("sentence", sentences))
_MAX_VARIANTS = 20  # more are no versions of a template
_MIN_ROWS = 2  # of each variant
_MIN_LENGTH, _MAX_LENGTH = 8, 4000  # characters of a variant
_MAX_DIFFERENT = 64  # characters in which two variants may differ
_MIN_ALIKE = 0.7  # of their characters must be the same


def propose(examination: Examination, version: Version) -> Iterator[Proposal]:
    candidates = [_unify(examination, version, read_heads(examination, version, *cut)) for cut in _CUTS]
    found = [candidate for candidate in candidates if candidate is not None]
    if found:
        yield max(found, key=lambda candidate: candidate[0])[1]
        examination.forget_all_but([version, *(proposal.version for _, proposal in found)])


def _unify(examination: Examination, version: Version, heads: Heads) -> tuple[int, Proposal] | None:
    """-> (bytes saved, proposal), if there are variants and what follows them is shared."""
    standard = _find_variants(heads)
    then = _rewrite(examination, version, heads, standard)
    # From the last to the first: without the last, what it saves is its own length and what follows, no more.
    for position in sorted({position for position, _ in standard}, reverse=True):
        fewer = {key: text for key, text in standard.items() if key[0] != position}
        without = _rewrite(examination, version, heads, fewer)
        if not _is_worth(examination, without, then, [row.get(position, "") for row in heads.rows]):
            standard, then = fewer, without
    if not standard:
        return None
    return examination.compare_texts(version, then).num_saved, _proposal(heads, standard, then)


def _is_worth(examination: Examination, now: Version, then: Version, passages: list[str]) -> bool:
    """`passages`: what stands at the position in which the versions differ, row by row."""
    before, after = examination.texts(now), examination.texts(then)
    places = set()  # where the variants stand: the text before, and which variant
    for row, passage in enumerate(passages):
        if before[row] is not None and after[row] is not None and before[row] != after[row]:
            places.add((before[row][: num_common(before[row], after[row])], passage))
    is_head = len({text for text, _ in places}) <= len({passage for _, passage in places})
    own = sum(len(passage.encode("utf-8", "surrogatepass")) for _, passage in places)
    compared = examination.compare_texts(now, then)
    return is_head and compared.num_saved >= max(2 * own, WORTH_SAYING / 2 * compared.now.num_items)


def _rewrite(
    examination: Examination, version: Version, heads: Heads, standard: dict[tuple[Position, str], str]
) -> Version:
    if not standard:
        return version

    def change(row: int, position: Position, passage: str) -> str:
        return standard.get((position, passage), passage)

    return Version(change_heads(examination, version, heads.cut, change), version.moved)


def _proposal(heads: Heads, standard: dict[tuple[Position, str], str], then: Version) -> Proposal:
    numbers = Counter(position for position, _ in standard)
    names = [f"{name_position(heads, position)} in {n + 1} ways" for position, n in numbers.items()]
    return Proposal(
        cause="template_variants",
        version=then,
        what=f"instructions that differ in a few characters: {', '.join(names)}",
        way_out="write the instructions in one way in all rows; a template in prompt.system or prompt.user always does",
    )


def _find_variants(heads: Heads) -> dict[tuple[Position, str], str]:
    """(position, variant) -> the most frequent way to write it."""
    counts: dict[Position, Counter[str]] = defaultdict(Counter)
    for row in heads.rows:
        for position, passage in row.items():
            if len(counts[position]) <= _MAX_VARIANTS:
                counts[position][passage] += 1
    standard = {}
    for position, variants in counts.items():
        if 2 <= len(variants) <= _MAX_VARIANTS and min(variants.values()) >= _MIN_ROWS:
            (first, _), *others = variants.most_common()
            standard |= {(position, other): first for other, _ in others if _are_alike(first, other)}
    return standard


def _are_alike(a: str, b: str) -> bool:
    if not (_MIN_LENGTH <= min(len(a), len(b)) and max(len(a), len(b)) <= _MAX_LENGTH):
        return False
    num_same = sum(block.size for block in SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks())
    longer = max(len(a), len(b))
    return num_same >= _MIN_ALIKE * longer and longer - num_same <= _MAX_DIFFERENT
