"""Which worker works on which range of units, while workers come and go."""

from collections.abc import Mapping


class WorkerSlots:
    """A worker keeps its slot by its name; one that comes when another is gone takes over that one's slot.

    So the units of a lost worker's range stay together, and a worker that was started again goes on with its own.
    """

    def __init__(self, num_slots: int) -> None:
        self._names: list[str | None] = [None] * num_slots
        self._addresses: dict[int, str] = {}

    def update(self, workers: Mapping[str, str]) -> int:
        """`workers`: name by address, as the cluster has them now. -> how many of those that had a slot are gone."""
        by_name = {name: address for address, name in workers.items()}
        self._names = [name if name in by_name else None for name in self._names]
        newcomers = sorted(by_name.keys() - set(self._names), key=_in_numeric_order)
        for slot, name in enumerate(self._names):
            if name is None and newcomers:
                self._names[slot] = newcomers.pop(0)
        num_lost = len(set(self._addresses.values()) - set(workers))
        self._addresses = {slot: by_name[name] for slot, name in enumerate(self._names) if name is not None}
        return num_lost

    @property
    def addresses(self) -> dict[int, str]:
        """Worker by slot, where there is one."""
        return self._addresses


def _in_numeric_order(name: str) -> tuple[int, str]:
    return len(name), name  # worker 2 before worker 10
