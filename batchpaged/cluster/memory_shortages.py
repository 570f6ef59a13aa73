"""Says which worker ran out of memory, and what it made of it, while the run goes on."""

import queue
from collections import defaultdict
from collections.abc import Iterator
from typing import Any


class MemoryShortages:
    """`on_sample` may be called from any thread."""

    def __init__(self) -> None:
        self._num_told: dict[str, int] = defaultdict(int)  # by engine session
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def on_sample(self, sample: dict[str, Any]) -> None:
        num_times = sample["num_out_of_memory"]
        if num_times > self._num_told[sample["session"]]:
            self._num_told[sample["session"]] = num_times
            self._lines.put(
                f"an engine ran out of memory; its steps have at most {sample['max_batch_tokens']} tokens from now on"
            )

    def take(self) -> Iterator[str]:
        """What has not been said yet."""
        while not self._lines.empty():
            yield self._lines.get()
