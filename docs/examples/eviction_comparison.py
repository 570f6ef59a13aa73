"""How much of what could be reused is reused: eviction by next use against least recently used, sorted and shuffled.

Real scheduler, block pool and prefix cache; no model runs, completions are made of made-up tokens. The data set is a
synthetic one for retrieval-augmented generation, or a JSON file with a list of token id lists:

    python docs/examples/eviction_comparison.py
    python docs/examples/eviction_comparison.py --prompts prompts.json --max-sequences 256
"""

import argparse
import json
import random
from itertools import chain
from pathlib import Path

from batchpaged.engine.block_pool import BlockPool
from batchpaged.engine.prefix_cache import PrefixCache
from batchpaged.engine.sampling_params import SamplingParams
from batchpaged.engine.scheduler import Scheduler, SchedulerLimits
from batchpaged.engine.sequence import Sequence
from batchpaged.engine.step import Sampled

BLOCK_SIZE = 16
MAX_TOKENS = 16
SHARES = (0.05, 0.1, 0.25, 0.5, 1.0)  # of the unique tokens: sizes of the cache

Prompts = list[list[int]]


def rag_prompts(num_rows: int = 1000, num_documents: int = 100, seed: int = 0) -> Prompts:
    """A system text, one or two documents, a question. Few documents are asked about often, as in a Zipf law."""
    rng = random.Random(seed)
    documents = [_tokens(rng, rng.randint(100, 500)) for _ in range(num_documents)]
    weights = [1 / (rank + 1) for rank in range(num_documents)]
    system = _tokens(rng, 60)
    prompts = []
    for _ in range(num_rows):
        retrieved = rng.choices(documents, weights, k=rng.choice([1, 1, 2]))
        prompts.append([*system, *chain.from_iterable(retrieved), *_tokens(rng, rng.randint(8, 30))])
    return prompts


def _tokens(rng: random.Random, number: int) -> list[int]:
    return [rng.randrange(50_000) for _ in range(number)]


def num_unique_tokens(prompts: Prompts) -> int:
    """Nodes of the prefix tree."""
    unique, before = 0, []
    for prompt in sorted(prompts):
        differing = (i for i, (a, b) in enumerate(zip(before, prompt, strict=False)) if a != b)
        unique += len(prompt) - next(differing, min(len(before), len(prompt)))
        before = prompt
    return unique


def num_prefilled_tokens(prompts: Prompts, num_blocks: int, max_sequences: int, is_exact: bool) -> int:
    """What the scheduler has computed when all prompts are through. All of them wait from the start."""
    pool = BlockPool(num_blocks, BLOCK_SIZE)
    limits = SchedulerLimits(2048, max_sequences, 10**6)
    scheduler = Scheduler(pool, PrefixCache(pool, root=b""), limits, finish_reason)
    if not is_exact:
        pool.next_use = lambda block: None  # who knows of no next use evicts what was used least recently
    for i, prompt in enumerate(prompts):
        scheduler.add(Sequence(i, list(prompt), len(prompt), SamplingParams(max_tokens=MAX_TOKENS), 0))
    while (plan := scheduler.schedule()) is not None:
        scheduler.start(plan)
        asking = (step for step in plan.sequences if step.sample is not None)
        token_ids = {step.seq_id: 50_000 + step.seq_id + step.context_length for step in asking}
        scheduler.update(plan, Sampled(token_ids))
    scheduler.check()
    return scheduler.counts.prefilled


def finish_reason(sequence: Sequence) -> str | None:
    return "length" if sequence.num_generated_tokens >= MAX_TOKENS else None


def compare(prompts: Prompts, max_sequences: int) -> None:
    num_prompt, unique = sum(map(len, prompts)), num_unique_tokens(prompts)
    smallest = -(-(max(map(len, prompts)) + MAX_TOKENS) // BLOCK_SIZE)
    shuffled = random.Random(1).sample(prompts, len(prompts))
    orders = {"shuffled": shuffled, "sorted": sorted(prompts)}
    print(f"{len(prompts)} rows, {num_prompt} prompt tokens, {unique} unique; reuse_efficiency by blocks in the cache")
    print(f"{'':22}" + "".join(f"{order + policy:>20}" for order in orders for policy in (", LRU", ", next use")))
    for share in (0.0, *SHARES):
        num_blocks = max(smallest, int(share * unique / BLOCK_SIZE))
        name = f"{num_blocks} ({share:.0%})" if share else f"{num_blocks} (longest row)"
        results = [
            (num_prompt - num_prefilled_tokens(rows, num_blocks, max_sequences, is_exact)) / (num_prompt - unique)
            for rows in orders.values()
            for is_exact in (False, True)
        ]
        print(f"{name:22}" + "".join(f"{result:20.5f}" for result in results), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=Path, help="JSON: a list of token id lists")
    parser.add_argument("--max-sequences", type=int, default=16)
    arguments = parser.parse_args()
    given = rag_prompts() if arguments.prompts is None else json.loads(arguments.prompts.read_text())
    compare(given["ids"] if isinstance(given, dict) else given, arguments.max_sequences)
