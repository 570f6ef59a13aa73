"""Turns the samples that workers send, and the units they finish, into the run's progress."""

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any

from batchpaged.cluster.unit_ranges import OpenRows
from batchpaged.planning.cost import DECODE_WEIGHT
from batchpaged.planning.summary import PlanSummary
from batchpaged.run.progress import Progress
from batchpaged.run.unit_file import last_of_each_session

WINDOW_SECONDS = 15.0  # over which rates are taken
HISTORY_SECONDS = 0.5  # samples come more often
FIRST_SECONDS = 3.0  # of this sitting, before the time that is left is told: the first steps are slow, and prefill alone

_COUNTERS = ("num_prefilled_tokens", "num_cached_tokens", "num_completion_tokens")
_ROWS = "num_rows_done"


class ProgressTracker:
    """Counts finished units for good, and of the engines at work what their last samples say beyond that.

    An engine is lost with its worker: then its unfinished units count no more, since they are computed again.
    `on_sample` may be called from any thread.
    """

    def __init__(
        self,
        summary: PlanSummary,
        max_tokens: int,
        done: Sequence[dict[str, Any]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`done`: facts of units finished in earlier sittings."""
        self._summary = summary
        self._max_tokens = max_tokens
        self._clock = clock
        self._lock = threading.Lock()
        self._num_rows = sum(facts["num_rows"] for facts in done)  # of finished units
        self._finished: dict[str, dict[str, int]] = {}  # by engine session: its sums as of its last finished unit
        self._sampled: dict[str, dict[str, Any]] = {}  # the last sample, by worker, which in Dask's events is its address
        self._rows_of: dict[str, int] = defaultdict(int)  # by engine session: rows of its finished units
        self._history: deque[tuple[float, dict[str, int]]] = deque()
        for facts in last_of_each_session(done):
            self._finished[facts["session"]] = facts

    def on_unit(self, facts: dict[str, Any]) -> None:
        """A unit of this sitting is committed."""
        with self._lock:
            self._num_rows += facts["num_rows"]
            session = facts.get("session")
            if session is not None:
                self._rows_of[session] += facts["num_rows"]
                known = [self._finished[session]] if session in self._finished else []
                self._finished[session] = last_of_each_session([*known, facts])[0]

    def on_sample(self, sample: dict[str, Any]) -> None:
        with self._lock:
            self._sampled[sample["worker"]] = sample
            now = self._clock()
            if not self._history or now - self._history[-1][0] >= HISTORY_SECONDS:
                self._history.append((now, self._totals()))
            while len(self._history) > 2 and now - self._history[0][0] > WINDOW_SECONDS:
                self._history.popleft()

    def open_rows(self, address: str) -> OpenRows:
        """As the last sample of the worker at that address says."""
        with self._lock:
            sample = self._sampled.get(address)
        return OpenRows(sample["num_begun"], sample["num_ended"]) if sample else OpenRows(0, 0)

    def _totals(self) -> dict[str, int]:
        live = {sample["session"]: sample for sample in self._sampled.values()}
        over = [facts for session, facts in self._finished.items() if session not in live]
        totals = {key: sum(part[key] for part in (*live.values(), *over)) for key in _COUNTERS}
        open_rows = sum(max(0, sample[_ROWS] - self._rows_of[session]) for session, sample in live.items())
        return {**totals, _ROWS: min(self._num_rows + open_rows, self._summary.num_rows)}

    def progress(self) -> Progress:
        with self._lock:
            totals = self._totals()
            prefill, decode = self._rate("num_prefilled_tokens"), self._rate("num_completion_tokens")
        num_prompt = totals["num_prefilled_tokens"] + totals["num_cached_tokens"]
        return Progress(
            stage="infer",
            num_done=totals[_ROWS],
            num_total=self._summary.num_rows,
            unit="rows",
            num_prefilled_tokens=totals["num_prefilled_tokens"],
            num_completion_tokens=totals["num_completion_tokens"],
            num_cached_tokens=totals["num_cached_tokens"],
            prefill_tokens_per_s=prefill,
            decode_tokens_per_s=decode,
            hit_rate=totals["num_cached_tokens"] / num_prompt if num_prompt else None,
            seconds_left=self._seconds_left(totals, prefill, decode),
        )

    def _rate(self, key: str) -> float | None:
        """None where nothing is known, or where a lost worker took part of the count with it."""
        if len(self._history) < 2:
            return None
        (start, old), (end, new) = self._history[0], self._history[-1]
        return (new[key] - old[key]) / (end - start) if end > start and new[key] >= old[key] else None

    def _seconds_left(self, totals: dict[str, int], prefill: float | None, decode: float | None) -> float | None:
        """Remaining work over the present rate of work, a decoded token counting as DECODE_WEIGHT prefilled ones."""
        rate = (prefill or 0) + DECODE_WEIGHT * (decode or 0)
        if not rate or self._history[-1][0] - self._history[0][0] < FIRST_SECONDS:
            return None
        num_runnable = self._summary.num_rows - self._summary.num_failed
        done = totals[_ROWS]
        length = totals["num_completion_tokens"] / done if done else self._max_tokens
        num_left = max(0, self._summary.num_unique_tokens - totals["num_prefilled_tokens"])
        tokens_left = max(0.0, num_runnable * min(length, self._max_tokens) - totals["num_completion_tokens"])
        return (num_left + DECODE_WEIGHT * tokens_left) / rate
