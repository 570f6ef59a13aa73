"""Flat arrays of a step: every key that a query sees in one tile, partial results in order, cuts that no batch moves."""

from collections import Counter

import pytest
from attention.steps import MIXED, nested_step, prefix_step, random_step
from hypothesis import given
from hypothesis import strategies as st

from batchpaged.attention.plan import plan_attention
from batchpaged.attention.sharing import ALWAYS, NEVER
from batchpaged.attention.tiles import TilePlan, plan_tiles
from batchpaged.engine.step import StepPlan
from batchpaged.kernels.triton.paged_attention.tiling import BATCH_INVARIANT, Tiling

BLOCK_SIZE = 4
TILINGS = (
    Tiling(),
    Tiling(tile_rows=(6, 15), split_keys=10),
    Tiling(tile_rows=(7,), split_keys=16, splits_every_tile=True, key_alignment=8),
)

steps = st.builds(lambda make, seed: make(seed, BLOCK_SIZE)[0], st.sampled_from([random_step, nested_step]), st.integers(0, 999))
windows = st.one_of(st.none(), st.integers(1, 30))


def tiles_of(plan: TilePlan) -> list[tuple[int, ...]]:
    return [tuple(tile) for tiles in plan.tiles.values() for tile in tiles.tolist()]


def seen_keys(plan: TilePlan, window: int | None) -> Counter:
    """(token, slot's block, position) as the kernel reads them"""
    seen = Counter()
    for first, num_queries, first_block, run_start, begin, _, end, _ in tiles_of(plan):
        for index in range(first, first + num_queries):
            position = int(plan.positions[index])
            low = begin if window is None else max(begin, position + 1 - window)
            for key in range(low, min(end, position + 1)):
                seen[int(plan.tokens[index]), int(plan.blocks[first_block + (key - run_start) // BLOCK_SIZE]), key] += 1
    return seen


def wanted_keys(step: StepPlan, window: int | None) -> Counter:
    wanted, token = Counter(), 0
    for sequence in step.sequences:
        for position in range(sequence.context_length - sequence.query_length, sequence.context_length):
            for key in range(0 if window is None else max(0, position + 1 - window), position + 1):
                wanted[token, sequence.block_table[key // BLOCK_SIZE], key] += 1
            token += 1
    return wanted


@given(steps, st.sampled_from([1, 3]), windows, st.sampled_from(TILINGS), st.sampled_from([ALWAYS, MIXED, NEVER]))
def test_every_key_that_a_query_sees_is_in_one_tile(step, repeats, window, tiling, rule) -> None:
    plan = plan_tiles(plan_attention(step.sequences, BLOCK_SIZE, rule), repeats, window, tiling)
    assert seen_keys(plan, window) == wanted_keys(step, window)


@given(steps, st.sampled_from([1, 3]), windows, st.sampled_from(TILINGS))
def test_tiles_are_what_the_kernel_expects(step, repeats, window, tiling) -> None:
    plan = plan_tiles(plan_attention(step.sequences, BLOCK_SIZE, ALWAYS), repeats, window, tiling)
    for rows, tiles in plan.tiles.items():
        sizes = [end - begin for _, _, _, _, begin, _, end, _ in tiles.tolist()]
        assert sizes == sorted(sizes, reverse=True)
        for first, num_queries, _, run_start, begin, seen_by_all, end, _ in tiles.tolist():
            positions = plan.positions[first : first + num_queries]
            assert 0 < num_queries * repeats <= rows
            assert run_start <= begin <= seen_by_all <= end and begin < end
            assert window is not None or (begin, end) == (begin, min(end, positions.max() + 1))
            assert all(position + 1 >= seen_by_all for position in positions) or seen_by_all == begin
            assert all(position >= begin for position in positions)


@given(steps, windows, st.sampled_from(TILINGS))
def test_partial_results_of_a_token_lie_one_after_another_in_the_order_of_their_keys(step, window, tiling) -> None:
    plan = plan_tiles(plan_attention(step.sequences, BLOCK_SIZE, ALWAYS), 2, window, tiling)
    places, finals = {}, []
    for first, num_queries, _, _, begin, _, _, is_final in tiles_of(plan):
        for index in range(first, first + num_queries):
            if is_final:
                finals.append(int(plan.tokens[index]))
            else:
                places[int(plan.partials[index])] = (int(plan.tokens[index]), begin)
    assert sorted(places) == list(range(plan.num_partials))
    assert [places[i] for i in range(plan.num_partials)] == sorted(places.values())
    owners = [token for token, start, end in _merges(plan) for _ in range(start, end)]
    assert owners == [places[i][0] for i in range(plan.num_partials)]
    assert sorted([*finals, *plan.merged_tokens.tolist()]) == list(range(step.num_tokens))


def _merges(plan: TilePlan) -> list[tuple[int, int, int]]:
    return list(zip(plan.merged_tokens.tolist(), plan.merge_starts[:-1].tolist(), plan.merge_starts[1:].tolist(), strict=True))


@given(steps, windows)
def test_the_keys_of_a_tokens_partial_results_do_not_depend_on_the_batch(step, window) -> None:
    """With every tile split, and nothing shared: cut at multiples of the split, whatever else is computed beside it."""
    tiling = Tiling(tile_rows=(8,), split_keys=8, splits_every_tile=True, key_alignment=8)
    plan = plan_tiles(plan_attention(step.sequences, BLOCK_SIZE, NEVER), 2, window, tiling)
    cuts = Counter()
    for first, num_queries, _, _, begin, _, _, _ in tiles_of(plan):
        cuts.update((int(plan.tokens[i]), int(plan.positions[i]), begin) for i in range(first, first + num_queries))
    wanted = set()
    for token, position in enumerate(step.positions):
        lowest = 0 if window is None else max(0, position + 1 - window)
        wanted |= {(token, position, begin) for begin in range(lowest // 8 * 8, position + 1, 8)}
    assert cuts == Counter(wanted)


def test_a_context_is_cut_at_absolute_positions_although_its_run_starts_elsewhere() -> None:
    (step, _), tiling = random_step(0, BLOCK_SIZE), Tiling(tile_rows=(16,), split_keys=6)
    plan = plan_tiles(plan_attention(step.sequences, BLOCK_SIZE, ALWAYS), 16, None, tiling)
    assert any(run_start % 6 for _, _, _, run_start, *_ in tiles_of(plan))
    assert all(begin % 6 == 0 or begin == run_start for _, _, _, run_start, begin, *_ in tiles_of(plan))


def test_many_queries_are_not_split_but_for_batch_invariance() -> None:
    items = plan_attention(prefix_step([((), 20, 100, 0)], 64, 1)[0].sequences, 64, NEVER)
    plain, invariant = (plan_tiles(items, 4, None, tiling) for tiling in (Tiling(), BATCH_INVARIANT))
    longest = max(end - begin for *_, begin, _, end, _ in tiles_of(plain))
    assert longest > 512 >= max(end - begin for *_, begin, _, end, _ in tiles_of(invariant))


def test_cuts_must_be_aligned() -> None:
    with pytest.raises(ValueError, match="not aligned"):
        Tiling(split_keys=512, key_alignment=96)


def test_nothing_to_attend_to() -> None:
    plan = plan_tiles([], 4, None, Tiling())
    assert (plan.tiles, plan.num_partials, len(plan.tokens), plan.merge_starts.tolist()) == ({}, 0, 0, [0])


@pytest.mark.parametrize("repeats", [1, 5, 128])
def test_arrays_are_of_32_bits(repeats: int) -> None:
    plan = plan_tiles(plan_attention(random_step(1, BLOCK_SIZE)[0].sequences, BLOCK_SIZE, ALWAYS), repeats, None, Tiling())
    arrays = (*plan.tiles.values(), plan.blocks, plan.tokens, plan.positions, plan.partials, plan.merged_tokens, plan.merge_starts)
    assert {array.dtype.name for array in arrays} == {"int32"}
