"""A completion that is a verdict on something, usually on an earlier stage's completion."""

from __future__ import annotations

import re
from collections.abc import Sequence

_WORD = re.compile(r"\w+")


def verdict_worth(completion: str, verdicts: Sequence[tuple[str, float]]) -> float | None:
    """What the verdict is worth that the completion begins with, of several the longest; None if it begins with none.

    Words are compared, without case and punctuation: a model that may say anything says `Yes, it does.`
    """
    said = _words(completion)
    found = [(len(words), worth) for words, worth in ((_words(text), worth) for text, worth in verdicts) if _begins(said, words)]
    return max(found)[1] if found else None


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def _begins(said: list[str], words: list[str]) -> bool:
    return bool(words) and said[: len(words)] == words
