"""A simulation counts what a real run with the same completions counted."""

import numpy as np
import pyarrow.parquet as pq
import tiny_runs

from batchpaged.engine.engine import EngineLimits
from batchpaged.engine.sampling_params import SamplingParams
from batchpaged.planning.cost import CostModel
from batchpaged.planning.plan_file import read_plan
from batchpaged.run.directory import RunDirectory
from batchpaged.simulation.prompts import read_prompts
from batchpaged.simulation.simulate import SimulatedRun, simulate
from batchpaged.simulation.step_time import StepTime


def completion_lengths(directory: RunDirectory) -> np.ndarray:
    """Tokens of each completion of the run, in planned order."""
    files = [directory.unit_file(unit.index) for unit in read_plan(directory.path)[1]]
    columns = [pq.ParquetFile(path).read(["completion_tokens"])["completion_tokens"] for path in files]
    return np.concatenate([column.drop_null().to_numpy() for column in columns])


def test_one_worker_counts_what_a_real_run_counted():
    result = tiny_runs.finished_run()
    engine = tiny_runs.pipeline(result.run_dir)["engine"]
    limits = EngineLimits(
        num_blocks=engine["kv_cache"],
        block_size=16,
        max_batch_tokens=engine["max_batch_tokens"],
        max_sequences=engine["max_sequences"],
        max_model_len=320,
        prefix_cache=True,
    )
    simulated = simulate(
        SimulatedRun(
            prompts=read_prompts(result.run_dir, 1000),
            lengths=completion_lengths(RunDirectory(result.run_dir))[:, None],
            params=SamplingParams(max_tokens=tiny_runs.MAX_TOKENS),
            limits=limits,
            cost=CostModel(tiny_runs.MAX_TOKENS / 2, is_greedy=True),
            step_time=StepTime(64.0, 1.0, 1.0, 0.0),
        ),
        num_workers=1,
    )
    tokens, rows = result.report["tokens"], result.report["rows"]
    assert simulated.num_rows == rows["succeeded"]
    assert simulated.num_prompt_tokens == tokens["prompt"]
    assert simulated.num_unique_tokens == tokens["unique"]
    assert simulated.num_prefilled_tokens == tokens["prefilled"]
    assert simulated.num_prompt_tokens - simulated.num_prefilled_tokens == tokens["cached"]
    assert simulated.num_recomputed_tokens == tokens["recomputed"]
    assert simulated.num_preemptions == result.report["num_preemption"]
    assert simulated.hit_rate == result.report["prefix_cache_hit_rate"]
    assert simulated.reuse_efficiency == result.report["reuse_efficiency"]
