"""A worker of a simulation: a real engine around a model that only counts."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from batchpaged.cluster.fan_out import equal_rows
from batchpaged.cluster.unit_ranges import CompletionSum, OpenRows
from batchpaged.engine.engine import Completion, Engine, EngineLimits, row_seed, sequence_seeds
from batchpaged.engine.sampling_params import SamplingParams
from batchpaged.engine.step import Sampled, SampleRequest, StepPlan
from batchpaged.engine.stop import StopCheck
from batchpaged.errors import RowError
from batchpaged.planning.units import Unit
from batchpaged.simulation.prompts import PlannedPrompts
from batchpaged.simulation.step_time import StepTime

# Tokens that no prompt has, so that no completion is mistaken for a prompt's continuation.
FILLER, END = 2**31 - 2, 2**31 - 1


class NoTokenizer:
    def decode(self, token_ids: list[int], skip_special_tokens: bool) -> str:
        return ""


class CountingModel:
    """Ends each completion at the length that its row is to have, and adds up virtual time."""

    def __init__(self, step_time: StepTime) -> None:
        self.busy_seconds = 0.0
        self.final_lengths: dict[int, int] = {}  # tokens of prompt and completion, by the sequence's seed
        self._step_time = step_time

    def start(self, plan: StepPlan) -> Callable[[], Sampled]:
        self.busy_seconds += self._step_time.seconds(plan)
        steps = [step for step in plan.sequences if step.sample is not None]
        requests = [request for step in steps for request in ((step.seq_id, step.sample), *step.forks)]
        sampled = {seq_id: self._next_token(request) for seq_id, request in requests}
        return lambda: Sampled(sampled)

    def close(self) -> None:
        """It holds nothing."""

    def _next_token(self, request: SampleRequest) -> int:
        return END if request.num_tokens + 1 >= self.final_lengths[request.seed] else FILLER


@dataclass
class _OpenUnit:
    num_rows: int
    num_open: int
    completions: CompletionSum = CompletionSum(0, 0)


@dataclass(frozen=True)
class _Tag:
    unit: _OpenUnit
    num_equal: int  # rows that get the completion


class SimulatedWorker:
    """Runs units back to back, as `cluster.engine_worker` does."""

    def __init__(self, limits: EngineLimits, params: SamplingParams, step_time: StepTime, fans_out: bool) -> None:
        """`fans_out`: equal rows that follow each other are computed once."""
        self.clock = 0.0  # seconds since the start of inference
        self.peak_usage = 0.0  # share of the pool's blocks that running sequences hold
        self.usage_seconds = 0.0  # the same, integrated over time in steps
        self.num_fanned_out_tokens = 0  # of prompts that were not computed, because an equal one was
        self.num_refused = 0  # rows that can never fit
        self._params = params
        self._fans_out = fans_out
        self._model = CountingModel(step_time)
        self.engine = Engine(self._model, limits, StopCheck(NoTokenizer(), frozenset({END})))
        self._units: dict[int, _OpenUnit] = {}

    @property
    def busy_seconds(self) -> float:
        return self._model.busy_seconds

    @property
    def is_idle(self) -> bool:
        """Nothing to do, and nothing to take in."""
        return not self._units

    @property
    def open_rows(self) -> OpenRows:
        num_rows = sum(unit.num_rows for unit in self._units.values())
        num_open = sum(unit.num_open for unit in self._units.values())
        num_waiting = min(len(self.engine.scheduler.waiting), num_open)  # a row may have several sequences
        return OpenRows(num_rows - num_waiting, num_rows - num_open)

    def add_unit(self, unit: Unit, prompts: PlannedPrompts, lengths: np.ndarray) -> None:
        """Queue the rows of a unit. `lengths` [rows of the plan, sequences]: tokens that each completion is to have."""
        num_rows = unit.end - unit.start
        self._units[unit.index] = opened = _OpenUnit(num_rows, num_rows)
        token_ids = [prompts[row].tolist() for row in range(unit.start, unit.end)]
        equal = equal_rows(token_ids, prompts.kinds(unit.start, unit.end)) if self._fans_out else ([i] for i in range(num_rows))
        for places in equal:
            row = unit.start + places[0]
            self._add_row(token_ids[places[0]], row, lengths[row].tolist(), _Tag(opened, len(places)))
        self.engine.scheduler.expect(prompts[unit.end].tolist() if unit.end < len(prompts) else None)

    def _add_row(self, token_ids: list[int], row: int, lengths: list[int], tag: _Tag) -> None:
        key = str(row)
        seeds = sequence_seeds(row_seed(self._params.seed, key), len(lengths))
        self._model.final_lengths |= {seed: len(token_ids) + n for seed, n in zip(seeds, lengths, strict=True)}
        try:
            self.engine.add(token_ids, self._params, key, tag)
        except RowError:
            tag.unit.num_open -= tag.num_equal
            self.num_refused += tag.num_equal

    def step(self) -> int:
        """Run one step, if there is anything to do. -> rows that ended."""
        before = self.busy_seconds
        num_ended = sum(self._end_row(completion) for completion in self.engine.step())
        seconds = self.busy_seconds - before
        usage = self.engine.pool.num_referenced / self.engine.pool.num_blocks
        self.clock += seconds
        self.usage_seconds += usage * seconds
        self.peak_usage = max(self.peak_usage, usage)
        return num_ended

    def _end_row(self, completion: Completion) -> int:
        """-> rows that ended: the one that was computed, and those equal to it."""
        unit, num_equal = completion.tag.unit, completion.tag.num_equal
        unit.num_open -= num_equal
        unit.completions += CompletionSum(num_equal, num_equal * completion.num_generated_tokens)
        self.num_fanned_out_tokens += (num_equal - 1) * completion.num_prompt_tokens
        return num_equal

    def take_finished(self) -> dict[int, CompletionSum]:
        """Units finished since the last call."""
        done = {index: unit.completions for index, unit in self._units.items() if unit.num_open == 0}
        for index in done:
            del self._units[index]
        return done
