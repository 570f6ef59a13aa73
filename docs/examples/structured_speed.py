"""What a JSON schema costs: the rows of a pipeline with it, then without it at the same lengths.

    python docs/examples/structured_speed.py PIPELINE [KEY=VALUE ...]

Every row's free completion is forced to as many tokens as the row's constrained one has, so both compute the same number of
tokens; those that the schema forces are computed together, which is part of what is measured.
"""

import json
import sys
import time

from batchpaged.engine.build import build_engine, choose_device, default_num_threads
from batchpaged.engine.sampling_params import SamplingParams
from batchpaged.planner import planned_prompts
from batchpaged.prepare import prepare, read_pipeline
from batchpaged.run.progress import NullReporter
from batchpaged.structured.grammar import schema_grammar

MAX_TOKENS = 128
SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "string", "maxLength": 60}, "supported": {"type": "boolean"}},
    "required": ["answer", "supported"],
    "additionalProperties": False,
}


def run(prepared, prompts, params, grammar):
    """-> completions by row, seconds in the engine, forced tokens, steps"""
    pipeline = prepared.pipeline
    device = choose_device(pipeline.engine.device)
    engine = build_engine(prepared.model, pipeline.model, pipeline.engine, device, "speed", default_num_threads(1))
    begun = time.perf_counter()
    for i, (prompt, settings) in enumerate(zip(prompts, params, strict=True)):
        engine.add(prompt, settings, str(i), i, grammar)
    done = {}
    while engine.has_unfinished:
        done |= {completion.tag: completion for completion in engine.step()}
    seconds = time.perf_counter() - begun
    return [done[i] for i in range(len(prompts))], seconds, engine.scheduler.counts.forced, engine.num_steps


def fits(text: str) -> bool:
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return list(value) == ["answer", "supported"] and len(value["answer"]) <= 60 and type(value["supported"]) is bool


def main(path: str, *overrides: str) -> None:
    prepared = prepare(read_pipeline(path, [*overrides, f"sampling.max_tokens={MAX_TOKENS}"], None), print)
    prompts = planned_prompts(prepared, NullReporter())[1]
    params = [SamplingParams(max_tokens=MAX_TOKENS)] * len(prompts)
    done, seconds, num_forced, num_steps = run(prepared, prompts, params, schema_grammar(json.dumps(SCHEMA)))
    lengths = [len(completion.token_ids) for completion in done]
    params = [SamplingParams(max_tokens=length, ignore_eos=True) for length in lengths]
    free, free_seconds, _, num_free_steps = run(prepared, prompts, params, None)
    assert [len(completion.token_ids) for completion in free] == lengths
    print(f"rows                 {len(done)}, {sum(fits(completion.text) for completion in done)} fit the schema")
    print(f"completion tokens    {sum(lengths)}, {num_forced} of them forced")
    print(f"steps                {num_steps}, and {num_free_steps} without the schema")
    print(f"rows/s               {len(done) / seconds:.3f}, and {len(done) / free_seconds:.3f} without the schema")
    print(f"loss                 {1 - free_seconds / seconds:.1%}")


if __name__ == "__main__":
    main(*sys.argv[1:])
