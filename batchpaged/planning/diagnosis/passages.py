"""A text cut into lines or sentences, and when two of them are the same but for how they are written."""

import re
import unicodedata
from collections.abc import Callable

_INVISIBLE = "\u00ad\u180e\u200b\u200c\u200d\u200e\u200f\u2060\ufeff"
_SPACE = rf"[\s{_INVISIBLE}]"
_LINE_END = re.compile(rf"{_SPACE}*\n{_SPACE}*")
_SENTENCE_END = re.compile(rf"(?<=[.!?]){_SPACE}+|{_SPACE}*\n{_SPACE}*")
_WITHOUT_INVISIBLE = dict.fromkeys(map(ord, _INVISIBLE))

Cut = Callable[[str], list[str]]


def whole(text: str) -> list[str]:
    return [text]


def lines(text: str) -> list[str]:
    """Each with its line end and the empty lines after it. Joined they are the text."""
    return _cut(text, _LINE_END)


def sentences(text: str) -> list[str]:
    """Each with the white space after it; a line's end is a sentence's end. Joined they are the text."""
    return _cut(text, _SENTENCE_END)


def _cut(text: str, end: re.Pattern[str]) -> list[str]:
    places = [0, *(match.end() for match in end.finditer(text) if match.end() < len(text)), len(text)]
    return [text[a:b] for a, b in zip(places[:-1], places[1:], strict=True)]


def normalise(passage: str) -> str:
    """Equal for passages that differ in white space, invisible characters or Unicode form only."""
    return " ".join(unicodedata.normalize("NFKC", passage.translate(_WITHOUT_INVISIBLE)).split())


_DIFFERENCES: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("line ends (CRLF)", lambda text: text.replace("\r\n", "\n").replace("\r", "\n")),
    ("invisible characters", lambda text: text.translate(_WITHOUT_INVISIBLE)),
    ("non-breaking or other special spaces", lambda text: re.sub(r"[^\S\n]", " ", text)),
    ("Unicode forms (NFC, NFKC)", lambda text: unicodedata.normalize("NFKC", text)),
    ("trailing, leading or doubled white space", lambda text: " ".join(text.split())),
)


def name_differences(passages: set[str]) -> set[str]:
    """What passages that are equal when normalised differ in. Removed one kind after another, until one is left."""
    names = set()
    for name, remove in _DIFFERENCES:
        simpler = {remove(passage) for passage in passages}
        if len(simpler) < len(passages):
            names.add(name)
        passages = simpler
    return names
