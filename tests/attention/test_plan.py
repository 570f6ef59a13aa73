from collections import Counter

import pytest
from attention.steps import random_step

from batchpaged.attention.batches import NO_KEY, pad_into_batches
from batchpaged.attention.plan import MIN_SHARED_BLOCKS, plan_attention
from batchpaged.engine.step import SequenceStep


def expected_pairs(plan, block_size):
    """(query row, block id, offset) of every key that each query must see."""
    row = 0
    for step in plan.sequences:
        for position in range(step.context_length - step.query_length, step.context_length):
            for key in range(position + 1):
                yield row, step.block_table[key // block_size], key % block_size
            row += 1


def planned_pairs(batches, block_size):
    for batch in batches:
        for item in range(len(batch.blocks)):
            for index, position in zip(batch.query_index[item], batch.query_position[item], strict=True):
                for slot, key in enumerate(batch.key_position[item]):
                    if key != NO_KEY and key <= position:
                        yield int(index), int(batch.blocks[item, slot // block_size]), slot % block_size


@pytest.mark.parametrize("seed", range(60))
def test_every_query_sees_every_visible_key_exactly_once(seed):
    block_size = (1, 2, 4)[seed % 3]
    plan, _ = random_step(seed, block_size)
    batches = pad_into_batches(plan_attention(plan.sequences, block_size), block_size)
    assert Counter(planned_pairs(batches, block_size)) == Counter(expected_pairs(plan, block_size))


def test_sequences_that_share_a_run_attend_to_it_in_one_item():
    shared = tuple(range(MIN_SHARED_BLOCKS))
    steps = tuple(SequenceStep(i, 1, len(shared) * 4 + 1, (*shared, 100 + i), None) for i in range(3))
    items = plan_attention(steps, 4)
    assert [len(item.query_indices) for item in items if item.blocks == shared] == [3]
    assert len(items) == 4


def test_shared_runs_nest_in_levels():
    system, first, second = tuple(range(4)), tuple(range(10, 14)), tuple(range(20, 24))
    tables = [(*system, *first, 90), (*system, *first, 91), (*system, *second, 92), (*system, *second, 93)]
    items = plan_attention(tuple(SequenceStep(i, 1, 33, t, None) for i, t in enumerate(tables)), 4)
    shared = {item.blocks: sorted(item.query_indices) for item in items if len(item.query_indices) > 1}
    assert shared == {system: [0, 1, 2, 3], first: [0, 1], second: [2, 3]}


def test_a_run_too_short_to_pay_is_not_shared():
    steps = tuple(SequenceStep(i, 1, 4 * (MIN_SHARED_BLOCKS - 1) + 1, (*range(MIN_SHARED_BLOCKS - 1), 50 + i), None) for i in range(2))
    assert all(len(item.query_indices) == 1 for item in plan_attention(steps, 4))
