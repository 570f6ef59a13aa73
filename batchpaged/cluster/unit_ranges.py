"""Which worker computes which unit: contiguous ranges, so that neighbours meet in one prefix cache."""

from collections.abc import Sequence


class UnitRanges:
    """Units in planned order, one contiguous range per slot (a worker's place)."""

    def __init__(self, units: Sequence[int], num_slots: int) -> None:
        bounds = [len(units) * i // num_slots for i in range(num_slots + 1)]
        self._ranges = [list(units[a:b]) for a, b in zip(bounds[:-1], bounds[1:], strict=True)]

    @property
    def num_left(self) -> int:
        return sum(map(len, self._ranges))

    def take(self, slot: int) -> int | None:
        """The slot's next unit; when it has none left, it first takes the far half of the longest range."""
        if not self._ranges[slot]:
            longest = max(range(len(self._ranges)), key=lambda i: len(self._ranges[i]))
            units = self._ranges[longest]
            half = len(units) // 2
            self._ranges[longest], self._ranges[slot] = units[:half], units[half:]
        return self._ranges[slot].pop(0) if self._ranges[slot] else None
