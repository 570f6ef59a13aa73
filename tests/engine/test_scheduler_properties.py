"""The scheduler under random prompts, limits and arrivals, against the fake model one prompt at a time."""

import random

import pytest
from engine.harness import SIZES, Harness, Settings, num_tree_nodes, prefix_tree
from hypothesis import event, given, settings, strategies as st

from batchpaged.engine.completion_lengths import CompletionLengths
from batchpaged.engine.in_flight import InFlight
from batchpaged.engine.sampling_params import SamplingParams
from batchpaged.engine.sequence import Sequence
from batchpaged.errors import RowError

TOKENS = st.lists(st.integers(0, 2), max_size=20)
ENGINES = st.builds(
    Settings,
    num_blocks=st.integers(7, 40),
    prefix_cache=st.sampled_from([True, True, True, False]),
    num_hash_bits=st.sampled_from([1, 8, 128, 128]),
    **SIZES,
)


@st.composite
def prompts(draw: st.DrawFn) -> list[list[int]]:
    """Beginnings of a few documents, each with an end of its own."""
    documents = draw(st.lists(TOKENS, min_size=1, max_size=4))
    starts = st.sampled_from(documents).flatmap(lambda d: st.integers(0, len(d)).map(lambda n: d[:n]))
    ends = st.lists(st.integers(0, 2), min_size=1, max_size=5)
    return draw(st.lists(st.tuples(starts, ends).map(lambda pair: pair[0] + pair[1]), min_size=1, max_size=25))


# Drawn prompt by prompt, which finds small counterexamples; or whole by seed, which makes large and varied runs.
ROWS = prompts() | st.integers(0, 10**6).map(lambda seed: prefix_tree(random.Random(seed), 25))


@settings(max_examples=300)
@given(engine=ENGINES, rows=ROWS, rng=st.randoms(use_true_random=False))
def test_any_run_equals_one_prompt_at_a_time(engine: Settings, rows: list[list[int]], rng: random.Random) -> None:
    harness = Harness(engine)
    for row in rows:
        _add(harness, row, rng.randint(1, 30))
        while rng.random() < 0.3 and harness.scheduler.has_unfinished:
            harness.step()
    harness.run()
    harness.check_outputs()
    event(f"preempted: {harness.scheduler.num_preemptions > 0}, cached: {harness.scheduler.counts.cached > 0}")


def _add(harness: Harness, prompt: list[int], max_tokens: int) -> None:
    """A row is refused if and only if it does not fit alone."""
    num_blocks = -(-(len(prompt) + max_tokens) // harness.pool.block_size)
    if num_blocks <= harness.pool.num_blocks:
        harness.add(prompt, max_tokens)
    else:
        with pytest.raises(RowError):
            harness.add(prompt, max_tokens)


@settings(max_examples=60)
@given(rows=prompts(), block_size=st.sampled_from([1, 2, 4, 8]), budget=st.sampled_from([2, 9, 500]))
def test_in_planned_order_a_cache_of_one_longest_prompt_computes_every_shared_token_once(
    rows: list[list[int]], block_size: int, budget: int
) -> None:
    """Sorted prompts, one at a time: what the plan promises holds for the smallest cache that can run at all."""
    rows = sorted([*row, 100 + i] for i, row in enumerate(rows))
    longest = max(map(len, rows)) + 1
    harness = Harness(Settings(-(-longest // block_size), block_size, budget, max_sequences=1))
    for row in rows:
        harness.add(row, 1)
    harness.run()
    harness.check_outputs()
    assert harness.scheduler.counts.prefilled == num_tree_nodes(rows)


@settings(max_examples=60)
@given(rows=prompts(), budget=st.sampled_from([2, 9, 500]), max_sequences=st.sampled_from([1, 4, 100]))
def test_prefilled_tokens_are_the_prefix_tree_and_a_last_token_per_contained_prompt(
    rows: list[list[int]], budget: int, max_sequences: int
) -> None:
    """In planned order and with room, nothing but the last tokens of equal prompts is computed twice."""
    rows = sorted(rows)
    harness = Harness(Settings(1000, 4, budget, max_sequences))
    for row in rows:
        harness.add(row, 3)
    harness.run()
    num_equal = sum(a == b for a, b in zip(rows[:-1], rows[1:], strict=True))
    assert harness.scheduler.counts.prefilled == num_tree_nodes(rows) + num_equal


def test_preemption_happens_often_and_changes_nothing() -> None:
    """Pools that hold a few of many sequences: the settings under which the others must be proven right as well."""
    num_preemptions, num_recomputed, num_cached_after = 0, 0, 0
    for seed in range(150):
        rng = random.Random(seed)
        size = rng.choice([1, 2, 4])
        harness = Harness(Settings(64 // size, size, rng.choice([3, 8, 64]), 100, num_hash_bits=(128, 8)[seed % 2]))
        for prompt in prefix_tree(rng, 25):
            harness.add(prompt, rng.randint(10, 30))
        harness.run()
        harness.check_outputs()
        num_preemptions += harness.scheduler.num_preemptions
        num_recomputed += harness.scheduler.counts.recomputed
        num_cached_after += sum(s.num_preemptions > 0 and s.num_cached_tokens > 0 for s in harness.sequences)
    assert num_preemptions > 100
    assert num_recomputed > 0
    assert num_cached_after > 0


def test_without_a_prefix_cache_nothing_is_cached_and_preempted_sequences_are_recomputed_whole() -> None:
    harness = Harness(Settings(num_blocks=16, block_size=4, prefix_cache=False))
    for prompt in prefix_tree(random.Random(0), 20):
        harness.add(prompt, 30)
    harness.run()
    harness.check_outputs()
    assert harness.scheduler.counts.cached == 0
    assert harness.scheduler.num_preemptions > 0
    assert harness.scheduler.counts.recomputed > 0


@settings(max_examples=100)
@given(rows=st.lists(TOKENS.filter(bool), min_size=1, max_size=12), removed=st.sets(st.integers(0, 11)), row=TOKENS)
def test_in_flight_finds_the_longest_overlap(rows: list[list[int]], removed: set[int], row: list[int]) -> None:
    in_flight = InFlight()
    sequences = [Sequence(i, tokens, len(tokens), SamplingParams(), 0) for i, tokens in enumerate(rows)]
    for sequence in sequences:
        in_flight.add(sequence)
    for index in removed:
        if index < len(sequences):
            in_flight.discard(sequences[index])
            in_flight.discard(sequences[index])  # a second time changes nothing
    shared, other = in_flight.longest_overlap(Sequence(99, row, len(row), SamplingParams(), 0))
    left = [tokens for i, tokens in enumerate(rows) if i not in removed]
    assert shared == max((_num_common(row, tokens) for tokens in left), default=0)
    assert other is None if shared == 0 else other.token_ids[:shared] == row[:shared]


def _num_common(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def test_expected_completion_length_is_learned() -> None:
    lengths = CompletionLengths()
    assert lengths.expected(max_tokens=30) == 15
    for num_tokens in (4, 5, 6, 6):
        lengths.add(num_tokens)
    assert lengths.expected(max_tokens=30) == 6  # the mean, rounded up
