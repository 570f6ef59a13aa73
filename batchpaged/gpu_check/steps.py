"""Steps to attend in: sequences whose first blocks are the same."""

from itertools import chain

from batchpaged.engine.step import SequenceStep, StepPlan

BLOCK_SIZE = 16


def decode_step(num_groups: int, num_members: int, prefix: int, context: int) -> tuple[StepPlan, int]:
    """One token of each sequence; those of a group share `prefix` tokens. -> (plan, number of blocks)"""
    return _step([((prefix // BLOCK_SIZE,), (group,), context, 1) for group in range(num_groups) for _ in range(num_members)])


def prefill_step(num_tokens: int) -> tuple[StepPlan, int]:
    return _step([((), (), num_tokens, num_tokens)])


def nested_step(num_sequences: int, runs: tuple[int, ...]) -> tuple[StepPlan, int]:
    """All share the first run, halves of those the next, and so on; some prefill, some decode. `runs`: blocks of each level's."""
    shared = sum(runs) * BLOCK_SIZE
    return _step(
        [
            (runs, tuple(i * 2**level // num_sequences for level in range(len(runs))), shared + 5 + 9 * i, 1 + 3 * (i % 2))
            for i in range(num_sequences)
        ]
    )


def _step(sequences: list[tuple[tuple[int, ...], tuple[int, ...], int, int]]) -> tuple[StepPlan, int]:
    """Of each sequence: blocks of its shared runs, which run of each level, tokens in the cache, tokens computed."""
    runs: dict[tuple[int, ...], tuple[int, ...]] = {}
    steps, slots, positions, free = [], [], [], 0
    for i, (lengths, names, context, query) in enumerate(sequences):
        shared: list[tuple[int, ...]] = []
        for level, length in enumerate(lengths):
            name = names[: level + 1]
            if name not in runs:
                runs[name], free = tuple(range(free, free + length)), free + length
            shared.append(runs[name])
        num_own = -(-context // BLOCK_SIZE) - sum(lengths)
        table, free = (*chain(*shared), *range(free, free + num_own)), free + num_own
        steps.append(SequenceStep(i, query, context, table, None))
        where = range(context - query, context)
        slots += [table[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE for p in where]
        positions += where
    return StepPlan((0,) * len(slots), tuple(positions), tuple(slots), tuple(steps), ()), free
