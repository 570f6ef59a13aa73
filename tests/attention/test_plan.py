"""Work items and batches: which queries meet which keys."""

from collections import Counter
from collections.abc import Iterable, Iterator

import pytest
from attention.steps import MIXED, nested_step, random_step
from hypothesis import given, strategies as st

from batchpaged.attention.batches import MAX_BATCH_SLOTS, NO_KEY, PaddedBatch, _round_up, pad_into_batches
from batchpaged.attention.plan import MAX_QUERIES, WorkItem, plan_attention
from batchpaged.attention.sharing import ALWAYS, NEVER, SharingRule
from batchpaged.engine.step import SequenceStep, StepPlan

Pair = tuple[int, int, int]  # query row, block id, offset in the block


def expected_pairs(plan: StepPlan, block_size: int) -> Iterator[Pair]:
    """Every key that each query must see."""
    row = 0
    for step in plan.sequences:
        for position in range(step.context_length - step.query_length, step.context_length):
            for key in range(position + 1):
                yield row, step.block_table[key // block_size], key % block_size
            row += 1


def planned_pairs(batches: Iterable[PaddedBatch], block_size: int) -> Iterator[Pair]:
    for batch in batches:
        for item in range(len(batch.blocks)):
            for index, position in zip(batch.query_index[item], batch.query_position[item], strict=True):
                for slot, key in enumerate(batch.key_position[item]):
                    if key != NO_KEY and key <= position:
                        yield int(index), int(batch.blocks[item, slot // block_size]), slot % block_size


@pytest.mark.parametrize("rule", [ALWAYS, NEVER, MIXED])
@pytest.mark.parametrize("make", [random_step, nested_step])
@pytest.mark.parametrize("seed", range(40))
def test_every_query_sees_every_visible_key_exactly_once(make, seed: int, rule: SharingRule) -> None:
    block_size = (1, 2, 4)[seed % 3]
    plan, _ = make(seed, block_size)
    batches = pad_into_batches(plan_attention(plan.sequences, block_size, rule), block_size)
    assert Counter(planned_pairs(batches, block_size)) == Counter(expected_pairs(plan, block_size))


@pytest.mark.parametrize("make", [random_step, nested_step])
@pytest.mark.parametrize("seed", range(40))
def test_a_query_is_at_most_once_in_a_batch(make, seed: int) -> None:
    """Partial results of a batch are merged in one go: a query that came twice would lose one of them."""
    plan, _ = make(seed, 2)
    for batch in pad_into_batches(plan_attention(plan.sequences, 2, ALWAYS), 2):
        rows = batch.query_index[batch.is_query].tolist()
        assert len(set(rows)) == len(rows)


def decoding(tables: list[tuple[int, ...]], context_length: int) -> tuple[SequenceStep, ...]:
    return tuple(SequenceStep(i, 1, context_length, table, None) for i, table in enumerate(tables))


def test_sequences_that_share_a_run_attend_to_it_in_one_item() -> None:
    shared = tuple(range(4))
    items = plan_attention(decoding([(*shared, 100 + i) for i in range(3)], len(shared) * 4 + 1), 4, ALWAYS)
    assert [len(item.query_indices) for item in items if item.blocks == shared] == [3]
    assert len(items) == 4


def test_shared_runs_nest_in_levels() -> None:
    system, first, second = tuple(range(4)), tuple(range(10, 14)), tuple(range(20, 24))
    tables = [(*system, *first, 90), (*system, *first, 91), (*system, *second, 92), (*system, *second, 93)]
    items = plan_attention(decoding(tables, 33), 4, ALWAYS)
    shared = {item.blocks: (item.level, sorted(item.query_indices)) for item in items if len(item.query_indices) > 1}
    assert shared == {system: (1, [0, 1, 2, 3]), first: (2, [0, 1]), second: (2, [2, 3])}
    assert [item.level for item in items if len(item.query_indices) == 1] == [0, 0, 0, 0]


def test_a_run_too_short_to_pay_is_not_shared() -> None:
    """Its keys stay with whatever comes after them, in a longer run or alone."""
    rule = SharingRule(key=1.0, pair=0.0, query=0.0, run=40.0)
    tables = [(0, 1, 2, 3, 40 + i // 2, 50 + i) for i in range(4)]
    items = plan_attention(decoding(tables, 21), 4, rule)  # 4 sequences share 16 keys, and 2 of them 4 more
    assert sorted((item.blocks, len(item.query_indices)) for item in items) == [
        ((0, 1, 2, 3), 4), ((40, 50), 1), ((40, 51), 1), ((41, 52), 1), ((41, 53), 1)
    ]  # fmt: skip
    assert all(len(item.query_indices) == 1 for item in plan_attention(decoding(tables, 21), 4, NEVER))


def test_prompts_that_each_extend_the_one_before_nest_without_end() -> None:
    """5,000 levels, far more than Python's calls nest; a run is shared wherever the 100 blocks before it were not."""
    num_levels, step = 5000, 100
    blocks = tuple(range(num_levels))
    steps = [SequenceStep(i, 1, i + 1, (*blocks[:i], num_levels + i), None) for i in range(num_levels)]
    rule = SharingRule(key=1.0, pair=0.0, query=step - 0.5, run=0.0)  # pays from `step` blocks on, and enough members
    covered = [0] * num_levels
    for item in sorted(plan_attention(tuple(steps), 1, rule), key=lambda item: item.key_start):
        for query in item.query_indices:
            assert covered[query] == item.key_start
            covered[query] = item.key_end
        assert item.blocks == steps[item.query_indices[0]].block_table[item.key_start : item.key_end]
    assert covered == list(range(1, num_levels + 1))


def test_a_block_that_holds_a_query_of_this_step_is_not_shared() -> None:
    """Its other slots are written in this step: whoever reads it needs causal order inside it."""
    shared = tuple(range(6))
    prefill = SequenceStep(0, 3, 24, shared, None)  # still computing the last of its blocks
    items = plan_attention((prefill, *decoding([(*shared, 7)], 25)), 4, ALWAYS)
    assert [item.blocks for item in items if len(item.query_indices) > 3] == [shared[:5]]


def test_long_prefills_are_cut_so_that_early_queries_skip_late_keys() -> None:
    num_tokens = 2 * MAX_QUERIES + 10
    step = SequenceStep(0, num_tokens, num_tokens, tuple(range(-(-num_tokens // 16))), None)
    items = plan_attention((step,), 16, ALWAYS)
    assert [len(item.query_indices) for item in items] == [MAX_QUERIES, MAX_QUERIES, 10]
    assert [item.key_end for item in items] == [MAX_QUERIES, 2 * MAX_QUERIES, num_tokens]
    assert [len(item.blocks) for item in items] == [-(-item.key_end // 16) for item in items]


def test_many_queries_of_a_shared_run_are_cut_as_well() -> None:
    shared = tuple(range(4))
    tables = [(*shared, 100 + i) for i in range(MAX_QUERIES + 3)]
    sizes = [len(item.query_indices) for item in plan_attention(decoding(tables, 17), 4, ALWAYS) if item.level == 1]
    assert sizes == [MAX_QUERIES, 3]


def test_one_sequence_alone_shares_nothing() -> None:
    (item,) = plan_attention(decoding([tuple(range(9))], 33), 4, ALWAYS)
    assert (item.blocks, item.level, item.key_start, item.key_end) == (tuple(range(9)), 0, 0, 33)


def test_batches_are_bounded_in_key_slots() -> None:
    items = [WorkItem((i,), (99,), tuple(range(7)), 0, 100, 0) for i in range(500)]
    batches = pad_into_batches(items, 16)
    assert sum(len(batch.blocks) for batch in batches) == 500
    assert all(batch.key_position.size <= MAX_BATCH_SLOTS for batch in batches)
    (alone,) = pad_into_batches([WorkItem((0,), (99_999,), tuple(range(6250)), 0, 100_000, 0)], 16)  # cannot be cut
    assert alone.key_position.size > MAX_BATCH_SLOTS


@given(st.integers(1, 10**6))
def test_rounding_up_wastes_less_than_a_third(n: int) -> None:
    assert n <= _round_up(n) < n * 4 / 3
    assert _round_up(_round_up(n)) == _round_up(n)
