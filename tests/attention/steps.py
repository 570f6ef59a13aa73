"""Random steps whose sequences share blocks."""

import random
from collections.abc import Sequence

from batchpaged.attention.sharing import SharingRule
from batchpaged.engine.step import SequenceStep, StepPlan

# Shares runs of some size and leaves others to each query, so that both ways and their merge are met.
MIXED = SharingRule(key=1.0, pair=0.1, query=1.0, run=20.0)


def random_step(seed: int, block_size: int, max_blocks: int = 12, num_sequences: int = 7) -> tuple[StepPlan, int]:
    """-> (plan, number of blocks used). Block tables branch like a prefix tree; some sequences decode, some prefill."""
    rng = random.Random(seed)
    tables: list[tuple[int, ...]] = []
    steps, num_blocks = [], 0
    for seq_id in range(rng.randint(1, num_sequences)):
        shared: tuple[int, ...] = ()
        if tables and rng.random() < 0.8:
            parent = rng.choice(tables)
            shared = parent[: rng.randint(0, len(parent) - 1)]
        num_own = rng.randint(1, max_blocks)
        table = (*shared, *range(num_blocks, num_blocks + num_own))
        num_blocks += num_own
        context = len(table) * block_size - rng.randint(0, block_size - 1)
        query = 1 if rng.random() < 0.5 else rng.randint(1, context - len(shared) * block_size)
        tables.append(table[: context // block_size] or table)
        steps.append(SequenceStep(seq_id, query, context, table, None))
    return step_plan(steps, block_size), num_blocks


def nested_step(seed: int, block_size: int, num_levels: int = 3) -> tuple[StepPlan, int]:
    """-> (plan, number of blocks used). Shared runs of equal length nest in levels, each level's groups nearly as large
    as those above them: work items of one query are then as alike in shape as can be.
    """
    rng = random.Random(seed)
    run = 4 + rng.randint(0, 1)
    levels = [tuple(range(level * run, (level + 1) * run)) for level in range(num_levels)]
    num_blocks, steps = num_levels * run, []
    for seq_id in range(rng.randint(9, 24)):
        depth = num_levels if rng.random() < 0.8 else rng.randint(0, num_levels - 1)
        shared = sum(levels[:depth], ())
        num_own = rng.choice([1, 1, 2, run])
        table = (*shared, *range(num_blocks, num_blocks + num_own))
        num_blocks += num_own
        context = len(table) * block_size - rng.randint(0, block_size - 1)
        query = 1 if rng.random() < 0.8 else rng.randint(1, context - len(shared) * block_size)
        steps.append(SequenceStep(seq_id, query, context, table, None))
    rng.shuffle(steps)
    return step_plan(steps, block_size), num_blocks


def step_plan(steps: list[SequenceStep], block_size: int) -> StepPlan:
    """The plan of these sequences; token ids do not matter to attention."""
    positions, slots = [], []
    for step in steps:
        for position in range(step.context_length - step.query_length, step.context_length):
            positions.append(position)
            slots.append(step.block_table[position // block_size] * block_size + position % block_size)
    return StepPlan((0,) * len(positions), tuple(positions), tuple(slots), tuple(steps), ())


def prefix_step(
    sequences: Sequence[tuple[tuple[int, ...], int, int, int]], block_size: int, run_blocks: int
) -> tuple[StepPlan, int]:
    """-> (plan, number of blocks used). Each sequence: the shared runs that it begins with, of `run_blocks` blocks each;
    number of its own blocks; query length; slots left free in its last block.
    """
    num_runs = 1 + max((run for runs, *_ in sequences for run in runs), default=-1)
    free = list(range(num_runs * run_blocks + sum(num_own for _, num_own, _, _ in sequences)))
    random.Random(0).shuffle(free)
    num_blocks, tables = len(free), [tuple(free.pop() for _ in range(run_blocks)) for _ in range(num_runs)]
    steps = []
    for seq_id, (runs, num_own, query, num_free) in enumerate(sequences):
        table = (*sum((tables[run] for run in runs), ()), *(free.pop() for _ in range(num_own)))
        steps.append(SequenceStep(seq_id, query, len(table) * block_size - num_free, table, None))
    return step_plan(steps, block_size), num_blocks
