"""Exact match and token F1 as SQuAD v1.1 defines them.

Both sides are lower-cased, stripped of ASCII punctuation and of the articles a, an, the, and split at white space.
A completion is compared with every reference and keeps its best score.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalise(text: str) -> str:
    """The words that count, joined by single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION)).split())


def exact_match(completion: str, references: Sequence[str]) -> float:
    """1 when the normalised completion equals a normalised reference, else 0."""
    answer = normalise(completion)
    return float(any(answer == normalise(reference) for reference in references))


def f1(completion: str, references: Sequence[str]) -> float:
    """Harmonic mean of word precision and recall against the best reference; words count as often as they occur."""
    answer = Counter(normalise(completion).split())
    return max((_f1(answer, Counter(normalise(reference).split())) for reference in references), default=0.0)


def _f1(answer: Counter[str], reference: Counter[str]) -> float:
    """v1.1: no word in common is 0, also where both sides are empty."""
    common = (answer & reference).total()
    return 2 * common / (answer.total() + reference.total()) if common else 0.0

