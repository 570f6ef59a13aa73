"""Rows in an engine whose KV cache is too small for them: without lower tiers, with host memory, and with a disk.

    python docs/examples/memory_tiers.py PIPELINE NUM_ROWS NUM_BLOCKS MAX_TOKENS [KEY=VALUE ...]

The first rows of the plan in random order, greedy, each completion forced to MAX_TOKENS tokens. All ways must give the same token ids.
"""

import random
import sys
import time
from dataclasses import asdict

from batchpaged.engine.build import build_engine, choose_device, default_num_threads
from batchpaged.engine.sampling_params import SamplingParams
from batchpaged.planner import planned_prompts
from batchpaged.prepare import Prepared, prepare, read_pipeline
from batchpaged.run.progress import NullReporter

HOST, SMALL_HOST, DISK = 4000, 40, 4000  # blocks
TIERS = {"none": {}, "host": {"host_cache": HOST}, "host and disk": {"host_cache": SMALL_HOST, "disk_cache": DISK}}


def run(prepared: Prepared, prompts: list[list[int]], max_tokens: int, **engine_settings: int) -> list[tuple[int, ...]]:
    """Prints what it took. -> token ids of each completion"""
    pipeline = prepared.pipeline
    config = pipeline.engine.model_copy(update=engine_settings)
    device = choose_device(config.device)
    engine = build_engine(prepared.model, pipeline.model, config, device, "tiers", default_num_threads(1))
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    begun = time.perf_counter()
    for i, prompt in enumerate(prompts):
        engine.add(prompt, params, str(i), i)
    done, peak = {}, 0
    while engine.has_unfinished:
        peak = max(peak, len({block for sequence in engine.scheduler.running for block in sequence.block_table}))
        done |= {completion.tag: completion.token_ids for completion in engine.step()}
    seconds, scheduler = time.perf_counter() - begun, engine.scheduler
    scheduler.check()
    engine.close()
    counts, tiers = scheduler.counts, scheduler.tiers
    print(f"{seconds:.1f} s, {peak} blocks in use, {counts.prefilled} prompt tokens computed, {counts.recomputed} recomputed, {scheduler.num_preemptions} preempted")
    print(f"    {asdict(tiers.counts) if tiers is not None else 'no tiers'}")
    return [done[i] for i in range(len(prompts))]


def main(path: str, num_rows: str, num_blocks: str, max_tokens: str, *overrides: str) -> None:
    prepared = prepare(read_pipeline(path, overrides, None), print)
    prompts = planned_prompts(prepared, NullReporter())[1][: int(num_rows)]
    random.Random(5).shuffle(prompts)
    print("room for all:", end=" ")
    expected = run(prepared, prompts, int(max_tokens))
    for name, tiers in TIERS.items():
        print(f"{num_blocks} blocks, tiers: {name}:", end=" ")
        found = run(prepared, prompts, int(max_tokens), kv_cache=int(num_blocks), **tiers)
        print(f"    {sum(a == b for a, b in zip(found, expected, strict=True))} of {len(prompts)} rows have the same token ids")


if __name__ == "__main__":
    main(*sys.argv[1:])
