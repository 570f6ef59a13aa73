"""Metrics of a completion against reference answers: each compares with every reference and keeps the best score.

A metric gives None where the references say nothing that it could compare with: the row does not count for it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

from rapidfuzz.distance import LCSseq

from batchpaged.evaluation.squad import exact_match, f1, normalise

_WORD = re.compile(r"\w+")
# An optional sign, digits with or without commas between thousands, a fraction, an exponent.
_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+|(?=\.\d))(?:\.\d+)?(?:[eE][-+]?\d+)?")
_TOLERANCE = 1e-6  # relative: 0.333333 is 1/3 in as many digits as people write


def contains(completion: str, references: Sequence[str]) -> float:
    """1 when the words of a reference stand in the completion, in a row, both normalised as for exact match."""
    answer = f" {normalise(completion)} "
    wanted = [normalise(reference) for reference in references]
    return float(any(words and f" {words} " in answer for words in wanted))


def rouge_l(completion: str, references: Sequence[str]) -> float:
    """F-measure of the longest common subsequence of words, lower-cased and without punctuation; no stemming."""
    answer = _WORD.findall(completion.lower())
    return max((_rouge_l(answer, _WORD.findall(reference.lower())) for reference in references), default=0.0)


def _rouge_l(answer: list[str], reference: list[str]) -> float:
    common = LCSseq.similarity(answer, reference)
    return 2 * common / (len(answer) + len(reference)) if common else 0.0


def numeric_match(completion: str, references: Sequence[str]) -> float | None:
    """1 when the completion's last number is a reference's last number; None where no reference has a number."""
    wanted = [number for number in map(_last_number, references) if number is not None]
    if not wanted:
        return None
    found = _last_number(completion)
    return float(found is not None and any(math.isclose(found, number, rel_tol=_TOLERANCE) for number in wanted))


def _last_number(text: str) -> float | None:
    found = _NUMBER.findall(text)
    return float(found[-1].replace(",", "")) if found else None


ANSWER_METRICS: dict[str, Callable[[str, Sequence[str]], float | None]] = {
    "exact_match": exact_match,
    "f1": f1,
    "rouge_l": rouge_l,
    "contains": contains,
    "numeric_match": numeric_match,
}
DEFAULT_METRICS = ("exact_match", "f1")
