"""Measures the engine alone, without a cluster: rows and tokens per second, and how near that is to the machine's peak."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from batchpaged.engine.build import build_engine, choose_device, default_num_threads
from batchpaged.engine.engine import Completion
from batchpaged.engine.sampling_params import SamplingParams
from batchpaged.engine.sequence import common_prefix_length
from batchpaged.errors import InputError
from batchpaged.matmul_rate import MatmulRate, measure_matmul_rate
from batchpaged.planner import model_cost, planned_prompts
from batchpaged.planning.cost import floor_flops
from batchpaged.prepare import Prepared
from batchpaged.run.progress import Progress, ProgressReporter


@dataclass(frozen=True)
class BenchResult:
    num_rows: int
    num_prompt_tokens: int
    num_unique_tokens: int
    num_prefilled_tokens: int
    num_completion_tokens: int
    load_seconds: float
    seconds: float  # of inference
    matmul: MatmulRate
    floor_seconds: float  # unique prompt tokens and completions, attention included, at that rate
    mean_running: float  # sequences per step

    @property
    def efficiency(self) -> float:
        return self.floor_seconds / self.seconds

    def lines(self) -> Iterator[str]:
        hit_rate = 1 - self.num_prefilled_tokens / self.num_prompt_tokens
        ceiling = 1 - self.num_unique_tokens / self.num_prompt_tokens
        yield f"rows                {self.num_rows}"
        yield f"prompt tokens       {self.num_prompt_tokens}, {self.num_unique_tokens} unique, {self.num_prefilled_tokens} prefilled"
        yield f"hit rate            {hit_rate:.4f} of at most {ceiling:.4f}"
        yield f"completion tokens   {self.num_completion_tokens}"
        yield f"load                {self.load_seconds:.2f} s"
        yield f"inference           {self.seconds:.2f} s"
        yield f"rows/s              {self.num_rows / self.seconds:.3f}"
        yield f"prefilled tokens/s  {self.num_prefilled_tokens / self.seconds:.1f}"
        yield f"completion tokens/s {self.num_completion_tokens / self.seconds:.1f}"
        yield f"sequences per step  {self.mean_running:.1f}"
        rate = self.matmul
        yield f"matrix products     {rate.sustained / 1e9:.0f} GFLOP/s measured, {rate.best / 1e9:.0f} in the best of them"
        yield f"floor               {self.floor_seconds:.2f} s for unique prompt tokens and completions, attention included"
        yield f"efficiency          {self.efficiency:.3f}  (floor / inference)"


def bench_prepared(prepared: Prepared, max_tokens: int, reporter: ProgressReporter) -> BenchResult:
    """Every completion is forced to `max_tokens` tokens, greedy. Raises InputError if no row has a prompt."""
    summary, prompts = planned_prompts(prepared, reporter)
    if not prompts:
        raise InputError("no row of the input gives a prompt")
    reporter.update(Progress("load", 0, 1, "models"))
    started = time.perf_counter()
    pipeline = prepared.pipeline
    device = choose_device(pipeline.engine.device)
    engine = build_engine(prepared.model, pipeline.model, pipeline.engine, device, "bench", default_num_threads(1))
    loaded = time.perf_counter()
    rate = measure_matmul_rate()
    begun = time.perf_counter()
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    for i, ids in enumerate(prompts):
        engine.add(ids, params, str(i), i)
    completions: list[Completion] = []
    num_running = 0
    while engine.has_unfinished:
        completions += engine.step()
        num_running += len(engine.scheduler.running)
        reporter.update(Progress("infer", len(completions), len(prompts), "rows"))
    seconds = time.perf_counter() - begun
    engine.scheduler.check()
    engine.close()
    num_completion = sum(c.num_generated_tokens for c in completions)
    flops = _floor_flops(prompts, max_tokens, prepared)
    return BenchResult(
        num_rows=len(prompts),
        num_prompt_tokens=summary.num_prompt_tokens,
        num_unique_tokens=summary.num_unique_tokens,
        num_prefilled_tokens=sum(c.num_prefilled_tokens for c in completions),
        num_completion_tokens=num_completion,
        load_seconds=loaded - started,
        seconds=seconds,
        matmul=rate,
        floor_seconds=flops / rate.sustained,
        mean_running=num_running / engine.num_steps,
    )


def _floor_flops(prompts: list[list[int]], max_tokens: int, prepared: Prepared) -> float:
    """`prompts` in planned order."""
    arrays = [np.asarray(prompt) for prompt in prompts]
    num_shared = [0, *(common_prefix_length(a, b) for a, b in zip(arrays[:-1], arrays[1:], strict=True))]
    return floor_flops(np.array([len(a) for a in arrays]), np.array(num_shared), max_tokens, model_cost(prepared)[0])
