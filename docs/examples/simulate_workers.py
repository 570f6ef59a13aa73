"""How a run would spread over 1 to 1,024 workers: a made-up data set, replayed without a model.

    python docs/examples/simulate_workers.py
    python docs/examples/simulate_workers.py --mean 16 --workers 64
    python docs/examples/simulate_workers.py --rows 20000 --blocks 2000

Rows ask about documents, of which few are asked about often and many once or twice (Zipf's law), below one system
prompt. Times are virtual; those of a step are of the order of one large GPU with an 8B model.
"""

import argparse
import time

import numpy as np

from batchpaged.engine.engine import EngineLimits
from batchpaged.engine.sampling_params import SamplingParams
from batchpaged.planning.cost import CostModel, expected_decode_tokens
from batchpaged.simulation.prompts import PlannedPrompts
from batchpaged.simulation.request import SimulationRequest
from batchpaged.simulation.result import Simulation
from batchpaged.simulation.simulate import SimulatedRun, simulate
from batchpaged.simulation.step_time import StepTime
from batchpaged.simulation.text import simulation_lines

VOCABULARY = 50_000
STEP_TIME = StepTime(per_step=5.5e-3, per_prefilled_token=40e-6, per_decoded_token=40e-6, per_attended_token=27e-9)


def make_prompts(num_rows: int, seed: int) -> PlannedPrompts:
    """In planned order: 60 tokens of system prompt, a document of 250 to 550, a question of 20 to 60."""
    rng = np.random.default_rng(seed)
    num_documents = max(1, num_rows // 10)
    share = 1 / np.arange(1, num_documents + 1)
    num_questions = rng.multinomial(num_rows, share / share.sum())
    system = tokens(rng, 60, 61)
    rows = []
    for count in num_questions:
        document = np.concatenate([system, tokens(rng, 250, 551)])
        rows += [np.concatenate([document, tokens(rng, 20, 61)]) for _ in range(count)]
    return PlannedPrompts.of(sorted(rows, key=lambda row: row.astype(">u4").tobytes()))


def tokens(rng: np.random.Generator, shortest: int, end: int) -> np.ndarray:
    return rng.integers(0, VOCABULARY, rng.integers(shortest, end)).astype(np.int32)


def make_run(options: argparse.Namespace) -> SimulatedRun:
    prompts = make_prompts(options.rows, options.seed)
    request = SimulationRequest((), mean_completion=options.mean, seed=options.seed)
    return SimulatedRun(
        prompts=prompts,
        lengths=request.lengths(len(prompts), options.max_tokens),
        params=SamplingParams(max_tokens=options.max_tokens),
        limits=EngineLimits(
            num_blocks=options.blocks,
            block_size=16,
            max_batch_tokens=2048,
            max_sequences=256,
            max_model_len=2048,
            prefix_cache=True,
        ),
        cost=CostModel(expected_decode_tokens(options.max_tokens, is_forced=False), is_greedy=True),
        step_time=STEP_TIME,
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Simulate a run on many workers.")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 8, 64, 256, 1024])
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--mean", type=float, help="mean length of completions; without it each takes max-tokens")
    parser.add_argument("--blocks", type=int, default=20_000, help="of each worker's KV cache, 16 tokens each")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    options = parse()
    run = make_run(options)
    started = time.perf_counter()
    results = tuple(simulate(run, num_workers) for num_workers in options.workers)
    mean = float(run.lengths.mean())
    simulation = Simulation(results, len(run.prompts), len(run.prompts), mean, "virtual time, of one large GPU per worker")
    print(*simulation_lines(simulation), sep="\n")
    print(f"\n{time.perf_counter() - started:.0f} s to simulate")


if __name__ == "__main__":
    main()
