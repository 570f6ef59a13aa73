"""The replay: workers take units and step their engines in virtual time, the one that is behind first."""

import heapq
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from batchpaged.cluster.engine_worker import REPORTS_PER_BATCH
from batchpaged.cluster.unit_ranges import Batch, UnitRanges
from batchpaged.engine.engine import EngineLimits
from batchpaged.engine.sampling_params import SamplingParams
from batchpaged.errors import InputError
from batchpaged.planning.cost import CostModel
from batchpaged.planning.order import Order
from batchpaged.planning.summary import num_unique_tokens
from batchpaged.planning.units import Unit, cut_units
from batchpaged.simulation.prompts import PlannedPrompts
from batchpaged.simulation.result import SimulationResult
from batchpaged.simulation.step_time import StepTime
from batchpaged.simulation.worker import SimulatedWorker


@dataclass(frozen=True)
class SimulatedRun:
    """What is replayed, the same for any number of workers."""

    prompts: PlannedPrompts
    lengths: np.ndarray  # int64 [rows, sequences]: tokens of each completion; scheduler and client do not know them
    params: SamplingParams
    limits: EngineLimits
    cost: CostModel  # by which units are cut and ranges shared
    step_time: StepTime

    @cached_property
    def order(self) -> Order:
        return self.prompts.order()


def simulate(run: SimulatedRun, num_workers: int) -> SimulationResult:
    """Cut the plan for so many workers and run it. Raises InputError if no row can be computed."""
    units = cut_units(run.order, run.cost, num_workers)
    batch = Batch(run.limits.max_sequences, run.limits.max_batch_tokens)
    ranges = UnitRanges(units, num_workers, run.cost.num_decode_tokens, batch)
    fans_out = run.cost.is_greedy and run.limits.prefix_cache
    workers = [SimulatedWorker(run.limits, run.params, run.step_time, fans_out) for _ in range(num_workers)]
    _Replay(run, units, ranges, workers).run()
    return _result(run, ranges, workers, len(units))


class _Replay:
    """Steps the worker whose clock is behind all others', until every unit is done."""

    def __init__(self, run: SimulatedRun, units: list[Unit], ranges: UnitRanges, workers: list[SimulatedWorker]) -> None:
        self._run, self._units, self._ranges, self._workers = run, units, ranges, workers
        self._next = [(0.0, slot) for slot in range(len(workers))]  # a heap: (clock, slot)
        self._idle: list[int] = []  # slots that were given nothing
        self._num_ended = [0] * len(workers)  # rows, since the last report
        ranges.attend(range(len(workers)))

    def run(self) -> None:
        while self._next:
            now, slot = heapq.heappop(self._next)
            self._take_in(slot, now)
            self._hand_out(slot)
            self._step(slot, now)

    def _take_in(self, slot: int, now: float) -> None:
        """A worker reports as `cluster.engine_worker` does: when a unit is done, or part of the batch."""
        worker = self._workers[slot]
        finished = worker.take_finished()
        for unit, completions in finished.items():
            self._ranges.finish(unit, completions)
        if finished or self._num_ended[slot] * REPORTS_PER_BATCH >= len(worker.engine.scheduler.running):
            self._ranges.report(slot, worker.open_rows)
            self._num_ended[slot] = 0
        if finished:
            self._wake(now)

    def _wake(self, now: float) -> None:
        """What was not worth it before may be now."""
        for slot in self._idle:
            heapq.heappush(self._next, (now, slot))
        self._idle.clear()

    def _hand_out(self, slot: int) -> None:
        for unit in self._ranges.hand_out(slot):
            self._workers[slot].add_unit(self._units[unit], self._run.prompts, self._run.lengths)

    def _step(self, slot: int, now: float) -> None:
        worker = self._workers[slot]
        if worker.is_idle:
            self._idle.append(slot)
            return
        worker.clock = now
        self._num_ended[slot] += worker.step()
        heapq.heappush(self._next, (worker.clock, slot))


def _result(run: SimulatedRun, ranges: UnitRanges, workers: list[SimulatedWorker], num_units: int) -> SimulationResult:
    schedulers = [worker.engine.scheduler for worker in workers]
    for scheduler in schedulers:
        scheduler.check()
    num_fanned_out = sum(worker.num_fanned_out_tokens for worker in workers)
    busy = sum(worker.busy_seconds for worker in workers)
    if not busy:
        raise InputError("no row can be computed: none has a prompt that fits into the KV cache")
    return SimulationResult(
        num_workers=len(workers),
        num_rows=len(run.prompts) - sum(worker.num_refused for worker in workers),
        num_units=num_units,
        num_steals=ranges.num_steals,
        num_prompt_tokens=num_fanned_out + sum(s.counts.prefilled + s.counts.cached for s in schedulers),
        num_unique_tokens=num_unique_tokens(run.order),
        num_prefilled_tokens=sum(s.counts.prefilled for s in schedulers),
        num_recomputed_tokens=sum(s.counts.recomputed for s in schedulers),
        num_completion_tokens=sum(s.counts.generated for s in schedulers),
        num_preemptions=sum(s.num_preemptions for s in schedulers),
        mean_cache_usage=sum(worker.usage_seconds for worker in workers) / busy,
        peak_cache_usage=max(worker.peak_usage for worker in workers),
        seconds=max(worker.clock for worker in workers),
        mean_worker_seconds=busy / len(workers),
    )
