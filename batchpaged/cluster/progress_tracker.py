"""Turns the samples that workers send, and the units they finish, into the run's progress."""

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Sequence
from typing import Any

from batchpaged.cluster.unit_ranges import OpenRows
from batchpaged.planning.cost import DECODE_WEIGHT
from batchpaged.planning.summary import PlanSummary
from batchpaged.run.progress import Progress
from batchpaged.run.unit_file import last_of_each_session

WINDOW_SECONDS = 15.0  # over which rates are taken
HISTORY_SECONDS = 0.5  # samples come more often
LEAST_LEFT = 1.0  # seconds that are told while there is work
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
        self._prefilled_of: dict[str, int] = defaultdict(int)  # and what they took: prompt tokens that were computed
        self._completion_of: dict[str, int] = defaultdict(int)  # and completion tokens
        self._num_unique = 0  # tokens of finished units
        self._history: deque[tuple[float, dict[str, int]]] = deque()
        for facts in done:
            self._count_finished(facts)
        for facts in last_of_each_session(done):
            self._finished[facts["session"]] = facts

    def on_unit(self, facts: dict[str, Any]) -> None:
        """A unit of this sitting is committed."""
        with self._lock:
            self._num_rows += facts["num_rows"]
            session = facts.get("session")
            if session is not None:
                self._rows_of[session] += facts["num_rows"]
                self._count_finished(facts)
                known = [self._finished[session]] if session in self._finished else []
                self._finished[session] = last_of_each_session([*known, facts])[0]

    def _count_finished(self, facts: dict[str, Any]) -> None:
        session = facts.get("session")
        if session is not None:
            self._num_unique += facts["reuse"]["num_unique_tokens"]
            self._prefilled_of[session] += facts["reuse"]["num_prefilled_tokens"]
            self._completion_of[session] += facts["completions"]["num_tokens"]

    def on_sample(self, sample: dict[str, Any]) -> None:
        with self._lock:
            self._sampled[sample["worker"]] = sample
            now = self._clock()
            if not self._history or now - self._history[-1][0] >= HISTORY_SECONDS:
                self._history.append((now, self._totals()))
            while len(self._history) > 2 and now - self._history[0][0] > WINDOW_SECONDS:
                self._history.popleft()

    def attend(self, addresses: Collection[str]) -> None:
        """These workers are there. What others had not finished is lost, and the counts go on from less: rates begin anew."""
        with self._lock:
            for address in self._sampled.keys() - set(addresses):
                del self._sampled[address]
                self._history.clear()

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
            num_prompt_left, num_completion_left = self._prompt_tokens_left(), self._completion_tokens_left(totals[_ROWS])
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
            seconds_left=self._seconds_left(num_prompt_left + DECODE_WEIGHT * num_completion_left, prefill, decode),
        )

    def _rate(self, key: str) -> float | None:
        """None where nothing is known, or where a lost worker took part of the count with it."""
        if len(self._history) < 2:
            return None
        (start, old), (end, new) = self._history[0], self._history[-1]
        return (new[key] - old[key]) / (end - start) if end > start and new[key] >= old[key] else None

    def _prompt_tokens_left(self) -> float:
        """To be computed: of units that are not finished, less what live engines have done of them. What was lost is no part of that.

        Where an earlier stage has left much in the cache, rows that have begun tell more than tokens.
        """
        live = self._sampled.values()
        num_unique = self._summary.num_unique_tokens - self._num_unique
        num_done = sum(max(0, s["num_prefilled_tokens"] - self._prefilled_of[s["session"]]) for s in live)
        num_rows = self._summary.num_rows - self._num_rows
        num_begun = sum(sample["num_begun"] for sample in live)
        share = max(0, num_rows - num_begun) / num_rows if num_rows else 0.0
        return max(0.0, min(num_unique - num_done, num_unique * share))

    def _completion_tokens_left(self, num_rows_done: int) -> float:
        """Rows that are left get as many as those that are done; before there are any, the most that they may have."""
        live = {sample["session"]: sample["num_completion_tokens"] for sample in self._sampled.values()}
        num_done = sum(live.values()) + sum(n for session, n in self._completion_of.items() if session not in live)
        length = num_done / num_rows_done if num_rows_done else self._max_tokens
        num_runnable = self._summary.num_rows - self._summary.num_failed
        return max(0.0, num_runnable * min(length, self._max_tokens) - num_done)

    def _seconds_left(self, work: float, prefill: float | None, decode: float | None) -> float | None:
        """Remaining work, in prefilled tokens, over the present rate of work."""
        rate = (prefill or 0) + DECODE_WEIGHT * (decode or 0)
        if not rate or self._history[-1][0] - self._history[0][0] < FIRST_SECONDS:
            return None
        return max(LEAST_LEFT, work / rate)
