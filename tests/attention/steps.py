"""Random steps whose sequences share blocks, and what each of their queries must see."""

import random

from batchpaged.engine.step import SequenceStep, StepPlan


def random_step(seed: int, block_size: int, max_blocks: int = 12, num_sequences: int = 7) -> tuple[StepPlan, int]:
    """-> (plan, number of blocks used). Block tables branch like a prefix tree; some sequences decode, some prefill."""
    rng = random.Random(seed)
    tables: list[list[int]] = []
    num_blocks = 0
    steps, positions, slots = [], [], []
    for seq_id in range(rng.randint(1, num_sequences)):
        num_shared = 0
        table: list[int] = []
        if tables and rng.random() < 0.8:
            parent = rng.choice(tables)
            num_shared = rng.randint(0, len(parent) - 1)
            table = parent[:num_shared]
        num_own = rng.randint(1, max_blocks)
        table = table + list(range(num_blocks, num_blocks + num_own))
        num_blocks += num_own
        own_slots = num_own * block_size
        context = num_shared * block_size + rng.randint(own_slots - block_size + 1, own_slots)
        query = 1 if rng.random() < 0.5 else rng.randint(1, context - num_shared * block_size)
        tables.append(table[: context // block_size] or table)
        steps.append(SequenceStep(seq_id, query, context, tuple(table), None))
        for p in range(context - query, context):
            positions.append(p)
            slots.append(table[p // block_size] * block_size + p % block_size)
    tokens = tuple(rng.randrange(100) for _ in positions)
    return StepPlan(tokens, tuple(positions), tuple(slots), tuple(steps), ()), num_blocks
