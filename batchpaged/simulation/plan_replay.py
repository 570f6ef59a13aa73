"""Simulates what a pipeline's plan would come to."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from batchpaged.config import Pipeline, SamplingConfig
from batchpaged.engine.engine import EngineLimits
from batchpaged.engine.sampling_params import SamplingParams
from batchpaged.planning.cost import CostModel, ModelCost
from batchpaged.run.progress import Progress, ProgressReporter
from batchpaged.simulation.prompts import PlannedPrompts
from batchpaged.simulation.request import SimulationRequest
from batchpaged.simulation.result import Simulation, SimulationResult
from batchpaged.simulation.simulate import SimulatedRun, simulate
from batchpaged.simulation.step_time import StepTime

ASSUMED_FLOPS = 200e12  # per second, where the rate is not known


@dataclass(frozen=True)
class Worker:
    """What each worker of the simulated run is taken to have."""

    model: ModelCost
    kv_bytes: int  # of its KV cache
    flops_per_second: float | None  # None: not known

    @property
    def time_note(self) -> str:
        if self.flops_per_second is None:
            return f"virtual time, at {ASSUMED_FLOPS / 1e12:.0f} TFLOP/s per worker, which is an assumption"
        return f"virtual time, at {self.flops_per_second / 1e9:.0f} GFLOP/s per worker"


def simulate_plan(
    prompts: PlannedPrompts,
    num_rows_planned: int,
    pipeline: Pipeline,
    cost: CostModel,
    worker: Worker,
    request: SimulationRequest,
    reporter: ProgressReporter,
) -> Simulation:
    """`prompts`: all of the plan's, or a sample of them. Raises InputError if none can be computed."""
    sampling = pipeline.sampling
    run = SimulatedRun(
        prompts=prompts,
        lengths=_lengths(sampling, request, len(prompts)),
        params=_params(sampling),
        limits=_limits(pipeline, worker),
        cost=cost,
        step_time=StepTime.of(worker.model, worker.flops_per_second or ASSUMED_FLOPS),
    )
    results = tuple(_results(run, request, reporter))
    return Simulation(
        results, len(prompts), num_rows_planned, float(run.lengths.mean()), worker.time_note, sampling.num_sequences
    )


def _lengths(sampling: SamplingConfig, request: SimulationRequest, num_rows: int) -> np.ndarray:
    """int64 [rows, sequences]; the beams of a row end together."""
    if sampling.beam_width is None:
        return request.lengths(num_rows, sampling.max_tokens, sampling.num_sequences)
    return request.lengths(num_rows, sampling.max_tokens).repeat(sampling.beam_width, axis=1)


def _params(sampling: SamplingConfig) -> SamplingParams:
    """All sequences of a row as samples, which part at once: beams part anew with every step, and take about the same memory."""
    num_sequences = sampling.num_sequences
    temperature = sampling.temperature if num_sequences == 1 else 1.0
    return SamplingParams(max_tokens=sampling.max_tokens, temperature=temperature, n=num_sequences)


def _limits(pipeline: Pipeline, worker: Worker) -> EngineLimits:
    engine = pipeline.engine
    return EngineLimits(
        num_blocks=worker.kv_bytes // (worker.model.kv_bytes_per_token * engine.block_size),
        block_size=engine.block_size,
        max_batch_tokens=engine.max_batch_tokens,
        max_sequences=engine.max_sequences,
        max_model_len=pipeline.model.max_model_len,
        prefix_cache=engine.prefix_cache,
    )


def _results(run: SimulatedRun, request: SimulationRequest, reporter: ProgressReporter) -> Iterator[SimulationResult]:
    for i, num_workers in enumerate(request.num_workers):
        reporter.update(Progress("simulate", i, len(request.num_workers), "worker counts"))
        yield simulate(run, num_workers)
