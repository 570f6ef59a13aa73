"""What rows of a stage find of the stages before it, in an engine that serves one after the other."""

import random

from engine.harness import SIZES, Harness, Settings, prefix_tree
from fake_model import FakeRunner
from hypothesis import given, settings, strategies as st

from batchpaged.engine.engine import Engine, EngineLimits, run_to_end
from batchpaged.engine.sampling_params import SamplingParams
from batchpaged.engine.sequence import Sequence
from batchpaged.engine.stop import StopCheck

SEEDS = st.integers(0, 10**6)


def prompts(seed: int, first_end: int) -> list[list[int]]:
    """In planned order, each with a last token of its own."""
    return sorted([*row, first_end + i] for i, row in enumerate(prefix_tree(random.Random(seed), 15)))


def run_stage(harness: Harness, rows: list[list[int]]) -> list[Sequence]:
    added = [harness.add(row, 3) for row in rows]
    harness.run()
    return added


def nodes(rows: list[list[int]]) -> set[tuple[int, ...]]:
    return {tuple(row[:end]) for row in rows for end in range(1, len(row) + 1)}


def num_common(a: list[int], b: list[int]) -> int:
    return len(nodes([a]) & nodes([b]))


@settings(max_examples=60)
@given(first=SEEDS, second=SEEDS, size=SIZES["block_size"], budget=st.sampled_from([3, 8, 64]), most=st.sampled_from([1, 5, 100]))
def test_with_room_what_is_spared_is_what_two_stages_have_in_common(
    first: int, second: int, size: int, budget: int, most: int
) -> None:
    before, rows = prompts(first, 100), prompts(second, 200)
    harness = Harness(Settings(1000, size, budget, most))
    assert not any(sequence.num_earlier_tokens for sequence in run_stage(harness, before))
    harness.cache.stage += 1
    added = run_stage(harness, rows)
    harness.check_outputs()
    shared = [0, *(num_common(a, b) for a, b in zip(rows[:-1], rows[1:], strict=True))]
    spared = sum(max(0, s.num_earlier_tokens - num) for s, num in zip(added, shared, strict=True))
    assert spared == len(nodes(before) & nodes(rows))
    assert sum(s.num_prefilled_tokens for s in added) == len(nodes(rows)) - spared


@settings(max_examples=60)
@given(seed=SEEDS, num_blocks=st.integers(12, 40), num_hash_bits=st.sampled_from([1, 128]), num_frames=st.sampled_from([0, 1, 5]))
def test_with_little_room_no_more_is_found_of_earlier_stages_than_is_found(
    seed: int, num_blocks: int, num_hash_bits: int, num_frames: int
) -> None:
    """Preempted rows among them, and blocks that were in a lower tier; each block's stage is checked with every step."""
    harness = Harness(Settings(num_blocks, 4, 16, 8, num_hash_bits=num_hash_bits, num_frames=num_frames, num_disk_slots=2 * num_frames))
    for stage in range(3):
        harness.cache.stage = stage
        for sequence in run_stage(harness, prompts(seed + stage % 2, 100)):
            assert 0 <= sequence.num_earlier_tokens <= (sequence.num_cached_tokens if stage else 0)
    harness.check_outputs()


def test_a_block_that_was_in_host_memory_is_still_the_earlier_stages() -> None:
    """Two long prompts, of which the cache holds one: the second stage's first row pushes out what its last one needs."""
    a, b = list(range(100, 124)), list(range(200, 224))
    harness = Harness(Settings(num_blocks=8, block_size=4, num_frames=8, max_sequences=1))
    run_stage(harness, [[*a, 1]])
    harness.cache.stage += 1
    added = run_stage(harness, [[*b, 1], [*a, 2]])
    assert harness.tiers.counts.num_loaded > 0
    assert (added[1].num_cached_tokens, added[1].num_earlier_tokens) == (24, 24)


class NoText:
    def decode(self, token_ids: list[int], skip_special_tokens: bool) -> str:
        return ""


def test_the_engine_says_of_each_row_what_it_found_of_the_stage_before() -> None:
    limits = EngineLimits(40, 4, 16, 8, max_model_len=100, prefix_cache=True)
    engine, outputs = Engine(FakeRunner(40, 4, 20, 16), limits, StopCheck(NoText(), frozenset())), []
    for stage in range(2):
        engine.add([5, 6, 7, 8, 9, 5, 6 + stage], SamplingParams(max_tokens=1), "a", stage)
        run_to_end(engine, outputs.append)
        engine.begin_stage()
    assert [(o.num_cached_tokens, o.num_earlier_tokens) for o in outputs] == [(0, 0), (6, 6)]
