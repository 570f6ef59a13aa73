"""The scores of one metric over a run of any length: their mean, exactly, and enough of them for an interval."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from batchpaged.evaluation.intervals import interval_of_counts

_MOST_VALUES = 20_000  # distinct ones; then they are kept with fewer digits
_DIGITS = 9


class Tally:
    """How often each score comes. Two tallies of parts, in any order, merge to that of the whole."""

    def __init__(self) -> None:
        self.num_rows = 0
        self.errors: Counter[str] = Counter()  # kind -> rows in which the metric failed, and which count as 0
        self._sum = 0.0
        self._counts: Counter[float] = Counter()
        self._digits = _DIGITS

    def add(self, score: float) -> None:
        self.num_rows += 1
        self._sum += score
        self._counts[round(score, self._digits)] += 1
        self._shorten()

    def merge(self, other: Tally) -> None:
        self.num_rows += other.num_rows
        self._sum += other._sum
        self.errors += other.errors
        self._counts += other._counts
        self._digits = min(self._digits, other._digits)
        self._shorten()

    def mean(self) -> float | None:
        """None without rows."""
        return self._sum / self.num_rows if self.num_rows else None

    def details(self) -> dict[str, Any]:
        """{low, high, num_rows, errors}: the 95% interval of the mean, None without rows."""
        low, high = interval_of_counts(self._counts) if self.num_rows else (None, None)
        return {"low": low, "high": high, "num_rows": self.num_rows, "errors": dict(sorted(self.errors.items()))}

    def _shorten(self) -> None:
        while len(self._counts) > _MOST_VALUES:
            self._digits -= 1
            self._counts = _sums((round(value, self._digits), count) for value, count in self._counts.items())


def _sums(pairs: Iterable[tuple[float, int]]) -> Counter[float]:
    counts: Counter[float] = Counter()
    for value, count in pairs:
        counts[value] += count
    return counts
