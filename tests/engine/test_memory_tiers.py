"""Blocks that are stored in host memory and on disk, and sequences that are swapped, against the fake model alone."""

import random
from collections import Counter
from dataclasses import replace

import pytest
from engine.harness import Harness, Settings, prefix_tree
from hypothesis import event, given, settings, strategies as st

from batchpaged.engine.step import MoveKind, StepPlan
from batchpaged.tiers.costs import TierCosts

ENGINES = st.builds(
    Settings,
    num_blocks=st.integers(7, 40),
    block_size=st.sampled_from([1, 2, 4, 8]),
    max_batch_tokens=st.sampled_from([1, 3, 8, 64]),
    max_sequences=st.sampled_from([1, 2, 5, 100]),
    num_hash_bits=st.sampled_from([1, 8, 128, 128]),
    steps_ahead=st.sampled_from([0, 1]),
    num_frames=st.integers(1, 40),
    num_disk_slots=st.integers(0, 40),
)


@settings(max_examples=200)
@given(engine=ENGINES, seed=st.integers(0, 10**6))
def test_any_run_with_tiers_equals_one_prompt_at_a_time(engine: Settings, seed: int) -> None:
    rng = random.Random(seed)
    harness = Harness(engine)
    kinds = counting(harness)
    for prompt in prefix_tree(rng, 25):
        max_tokens = rng.randint(1, 30)
        if -(-(len(prompt) + max_tokens) // engine.block_size) <= engine.num_blocks:
            harness.add(prompt, max_tokens)
        while rng.random() < 0.3 and harness.scheduler.has_unfinished:
            harness.step()
    harness.run()
    harness.check_outputs()
    event(f"loaded: {kinds[MoveKind.LOAD] > 0}, from disk: {kinds[MoveKind.READ] + kinds[MoveKind.LOAD_FROM_DISK] > 0}")


def counting(harness: Harness) -> Counter[MoveKind]:
    """Kinds of moves, as they are planned."""
    kinds: Counter[MoveKind] = Counter()

    def count(plan: StepPlan) -> None:
        kinds.update(move.kind for move in (*plan.moves, *plan.loads))

    harness.on_plan = count
    return kinds
