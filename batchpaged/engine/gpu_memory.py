"""How much memory of a GPU the KV cache may have: what a worst-case step leaves, measured."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice

import torch

from batchpaged.engine.release import release_memory
from batchpaged.engine.sampling_params import SamplingParams
from batchpaged.engine.step import SampleRequest, SequenceStep, StepPlan

# Sorting all logits takes most memory.
_PARAMS = SamplingParams(temperature=1.0, top_p=0.9)


@dataclass(frozen=True)
class GpuMemory:
    """In bytes."""

    total: int
    free: int  # with the model there, and no KV cache yet
    step: int  # that a worst-case step takes beyond this


def kv_cache_share(memory: GpuMemory, fraction: float) -> int:
    """Bytes for the KV cache, so that it, the model, a step and all that others hold take this fraction of the GPU."""
    in_use = memory.total - memory.free
    return max(0, int(memory.total * fraction) - in_use - memory.step)


def measure_gpu_memory(run_steps: Callable[[], None], device: str) -> GpuMemory:
    """`run_steps` runs worst-case steps; what it allocates is given back afterwards."""
    release_memory()
    free, total = torch.cuda.mem_get_info(device)
    before = torch.cuda.memory_reserved(device)
    torch.cuda.reset_peak_memory_stats(device)
    run_steps()
    torch.cuda.synchronize(device)
    step = torch.cuda.max_memory_reserved(device) - before
    release_memory()
    return GpuMemory(total, free, step)


@dataclass(frozen=True)
class WorstSteps:
    plans: tuple[StepPlan, ...]
    num_blocks: int  # of the KV cache that they need


def worst_steps(max_batch_tokens: int, max_sequences: int, max_model_len: int, block_size: int) -> WorstSteps:
    """The largest prefill, and a decode of as many sequences with as long contexts as there can be.

    The contexts lie in the few blocks of the prefill, over and over: what they hold does not matter. No two tables begin
    alike, so that no run of blocks is shared.
    """
    num_sequences = min(max_sequences, max_batch_tokens)
    lengths = [len(range(i, max_batch_tokens, num_sequences)) for i in range(num_sequences)]
    tables, num_blocks = [], 0
    for length in lengths:
        tables.append(range(num_blocks, num_blocks + -(-length // block_size)))
        num_blocks += len(tables[-1])
    num_decoded = -(-max_model_len // block_size)
    long_tables = [tuple(islice(cycle(range(num_blocks)), table.start, table.start + num_decoded)) for table in tables]
    prefill = _plan(lengths, lengths, [tuple(table) for table in tables], block_size)
    decode = _plan([1] * num_sequences, [max_model_len] * num_sequences, long_tables, block_size)
    return WorstSteps((prefill, decode), num_blocks)


def _plan(
    query_lengths: Sequence[int], context_lengths: Sequence[int], tables: Sequence[tuple[int, ...]], block_size: int
) -> StepPlan:
    positions: list[int] = []
    slots: list[int] = []
    sequences = []
    for i, (num_queries, length, table) in enumerate(zip(query_lengths, context_lengths, tables, strict=True)):
        own = range(length - num_queries, length)
        positions += own
        slots += [table[p // block_size] * block_size + p % block_size for p in own]
        request = SampleRequest(_PARAMS, i, length, None)
        sequences.append(SequenceStep(i, num_queries, length, table, request))
    return StepPlan((0,) * len(positions), tuple(positions), tuple(slots), tuple(sequences), ())
