"""A test for every engine invariant, named after it; those about outputs are in test_output_invariants.py."""

import dataclasses
import pickle
import random
from collections import Counter
from collections.abc import Callable

import pytest
import xxhash
from engine.harness import Harness, Settings, narrow_hash, num_tree_nodes, prefix_tree
from engine.real_engine import completions

from batchpaged.engine.block_pool import BlockPool
from batchpaged.engine.engine import Engine, EngineLimits
from batchpaged.engine.prefix_cache import PrefixCache, PrefixMatch
from batchpaged.engine.sampling_params import SamplingParams
from batchpaged.engine.step import BlockCopy, Sampled, SequenceStep, StepPlan
from batchpaged.engine.stop import StopCheck
from batchpaged.errors import RowError

TIGHT = Settings(num_blocks=14, block_size=4, max_batch_tokens=8)
ROOMY = Settings(num_blocks=400, block_size=4, max_batch_tokens=16)


def filled(settings: Settings, seed: int = 0, num_prompts: int = 30) -> Harness:
    """A harness with random prompts queued, all of which fit."""
    rng = random.Random(seed)
    harness = Harness(settings)
    for prompt in prefix_tree(rng, num_prompts):
        harness.add(prompt, rng.randint(1, 20))
    return harness


@pytest.mark.parametrize("settings", [TIGHT, ROOMY])
def test_a_block_is_in_exactly_one_state(settings: Settings) -> None:
    harness = filled(settings)
    seen: Counter[str] = Counter()
    while harness.scheduler.has_unfinished:
        harness.step()
        for block in range(settings.num_blocks):
            states = _states(harness, block)
            assert len(states) == 1
            seen[states[0]] += 1
    assert set(seen) == {"free", "cached and unreferenced", "referenced"}


def _states(harness: Harness, block: int) -> list[str]:
    pool = harness.pool
    states = {
        "free": block in pool._free,
        "cached and unreferenced": block in pool._free_queue,
        "referenced": pool.is_referenced(block),
    }
    if states["cached and unreferenced"]:
        assert pool.is_cached(block) and block in harness.cache._by_block, "in the free queue, and not findable"
    return [name for name, holds in states.items() if holds]


@pytest.mark.parametrize("settings", [TIGHT, ROOMY])
def test_reference_counts_equal_the_block_tables_and_the_pool_is_whole_at_the_end(settings: Settings) -> None:
    harness = filled(settings)
    while harness.scheduler.has_unfinished:
        harness.step()
        tables = Counter(block for s in harness.scheduler.running for block in s.block_table)
        assert harness.pool.reference_counts == [tables[block] for block in range(settings.num_blocks)]
    assert harness.pool.reference_counts == [0] * settings.num_blocks
    assert harness.pool.num_available == settings.num_blocks
    assert all(s.block_table == [] for s in harness.sequences)


@pytest.mark.parametrize("settings", [TIGHT, ROOMY])
def test_a_shared_block_is_never_written(settings: Settings) -> None:
    harness = filled(settings)  # whose every step asserts just that
    num_shared = 0
    while harness.scheduler.has_unfinished:
        harness.step()
        num_shared += sum(count > 1 for count in harness.pool.reference_counts)
    assert num_shared > 0
    assert harness.num_copies > 0
    harness.check_outputs()


def test_a_sequence_that_must_write_into_a_shared_block_gets_a_copy() -> None:
    harness = Harness(ROOMY)
    harness.add([1, 1, 1, 1, 2, 2], 3)
    copies: list[BlockCopy] = []
    harness.on_plan = lambda plan: copies.extend(plan.copies)
    harness.step()
    (source,) = set(harness.scheduler.running[0].block_table[1:])
    harness.add([1, 1, 1, 1, 2, 1], 3)  # leaves the first one inside its second block
    harness.step()
    first, second = harness.scheduler.running
    assert copies == [BlockCopy(source, second.block_table[1], num_slots=1)]
    assert first.block_table[0] == second.block_table[0]
    assert first.block_table[1] != second.block_table[1]
    harness.run()
    harness.check_outputs()


def test_a_block_hash_covers_parent_and_token_ids_and_is_seeded() -> None:
    first, second = _hashes(b"run|model|float32", [1, 2, 3, 4])
    assert first == xxhash.xxh3_128_digest(b"run|model|float32" + _int32(1, 2))
    assert second == xxhash.xxh3_128_digest(first + _int32(3, 4))
    assert _hashes(b"run|model|float16", [1, 2, 3, 4]) != [first, second]
    assert _hashes(b"run|model|float32", [3, 4])[0] != second  # the same tokens at the root


def _hashes(root: bytes, tokens: list[int]) -> list[bytes]:
    pool = BlockPool(8, block_size=2)
    cache = PrefixCache(pool, root)
    blocks: list[int] = []
    for start in range(0, len(tokens), 2):
        parent = blocks[-1] if blocks else None
        blocks.append(cache.insert(pool.allocate(), parent, tuple(tokens[start : start + 2])))
    return [cache._by_block[block].hash for block in blocks]


def _int32(*tokens: int) -> bytes:
    return b"".join(token.to_bytes(4, "little") for token in tokens)


def test_a_hit_counts_only_after_the_token_ids_match() -> None:
    pool = BlockPool(4, block_size=2)
    cache = PrefixCache(pool, b"", block_hash=lambda parent, tokens: b"always the same")
    block = cache.insert(pool.allocate(), None, (1, 2))
    assert cache.match([1, 2, 9]).blocks == (block,)
    assert cache.match([5, 6, 9]) == PrefixMatch((), None, 0, 0)
    assert cache.insert(pool.allocate(), None, (5, 6)) is None, "a collision must stay private"


def test_a_hit_counts_only_after_the_parent_matches() -> None:
    pool = BlockPool(4, block_size=2)
    cache = PrefixCache(pool, b"", block_hash=lambda parent, tokens: tokens)  # forgets the parent
    first = cache.insert(pool.allocate(), None, (1, 2))
    second = cache.insert(pool.allocate(), first, (3, 4))
    assert cache.match([1, 2, 3, 4, 9]).blocks == (first, second)
    assert cache.match([3, 4, 9]).num_tokens == 0
    assert cache.insert(pool.allocate(), None, (3, 4)) is None


@pytest.mark.parametrize("num_bits", [0, 1, 4, 8])
@pytest.mark.parametrize("settings", [TIGHT, ROOMY])
def test_colliding_hashes_give_no_wrong_hit(settings: Settings, num_bits: int) -> None:
    harness = filled(dataclasses.replace(settings, num_hash_bits=num_bits))
    harness.run()  # the fake model reads every context back and raises at a wrong token
    harness.check_outputs()
    assert any(s.is_private for s in harness.sequences), "no collision: the test tests nothing"


def test_narrow_hashes_keep_the_bits_that_they_are_asked_for() -> None:
    values = {narrow_hash(3)(b"", bytes([i])) for i in range(200)}
    assert len(values) == 8


@pytest.mark.parametrize("block_size", [1, 2, 4, 8])
def test_the_last_prompt_token_is_always_computed(block_size: int) -> None:
    for length in range(1, 18):
        harness = Harness(dataclasses.replace(ROOMY, block_size=block_size))
        prompt = list(range(length))
        for _ in range(3):  # one after another: everything but the last token is in the cache
            harness.add(prompt, 2)
            harness.run()
        assert [s.num_prefilled_tokens for s in harness.sequences] == [length, 1, 1]
        harness.check_outputs()


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_two_sequences_never_prefill_the_same_tokens_in_flight(seed: int, block_size: int) -> None:
    """With room for everything, each node of the prefix tree is computed once, in any order of arrival."""
    rng = random.Random(seed)
    # An end of its own for every prompt: none begins another, so a last token is never computed a second time.
    prompts = [[*prompt, 100 + i] for i, prompt in enumerate(prefix_tree(rng, 30))]
    settings = Settings(600, block_size, rng.choice([3, 8, 64, 1000]), rng.choice([2, 8, 100]))
    harness = Harness(settings)
    for prompt in prompts:
        harness.add(prompt, rng.randint(1, 4))
        if rng.random() < 0.2:
            harness.step()
    harness.run()
    harness.check_outputs()
    assert harness.scheduler.num_preemptions == 0
    assert harness.scheduler.counts.prefilled == num_tree_nodes(prompts)


def test_of_equal_prompts_in_flight_one_is_prefilled_and_the_others_compute_their_last_token() -> None:
    harness = Harness(dataclasses.replace(ROOMY, max_batch_tokens=7))
    for _ in range(5):
        harness.add(list(range(50)), 3)
    harness.run()
    assert sorted(s.num_prefilled_tokens for s in harness.sequences) == [1, 1, 1, 1, 50]


def test_the_step_plan_is_frozen() -> None:
    plans: list[StepPlan] = []
    harness = filled(TIGHT)
    harness.on_plan = plans.append
    harness.run()
    assert any(plan.copies for plan in plans)
    for plan in plans:
        _assert_frozen(plan)


def _assert_frozen(value: object) -> None:
    if isinstance(value, tuple):
        for item in value:
            _assert_frozen(item)
    elif dataclasses.is_dataclass(value):
        assert value.__dataclass_params__.frozen
        for field in dataclasses.fields(value):
            _assert_frozen(getattr(value, field.name))
    else:
        assert value is None or isinstance(value, (int, float, bool, str, frozenset))


def test_the_step_plan_is_all_that_crosses_to_the_runner() -> None:
    class Remote:
        """A runner that sees a plan only as the bytes that would travel to another process."""

        def start(self, plan: StepPlan) -> Callable[[], Sampled]:
            return local.runner.start(pickle.loads(pickle.dumps(plan)))

    local = Harness(TIGHT)
    engine = Engine(Remote(), _engine_limits(TIGHT), StopCheck(_NoText(), frozenset({0})))
    prompts = prefix_tree(random.Random(0), 20)
    tokens = [list(c.token_ids) for c in completions(engine, prompts, SamplingParams(max_tokens=9))]
    for prompt in prompts:
        local.add(prompt, 9)
    local.run()
    assert tokens == [s.generated_token_ids for s in local.sequences]


class _NoText:
    def decode(self, token_ids: list[int], skip_special_tokens: bool) -> str:
        return ""


def _engine_limits(settings: Settings) -> EngineLimits:
    return EngineLimits(
        settings.num_blocks, settings.block_size, settings.max_batch_tokens, settings.max_sequences, 10_000, True
    )


@pytest.mark.parametrize(
    ("num_prompt_tokens", "max_tokens", "message"),
    [
        (9990, 11, r"prompt \(9990 tokens\) and max_tokens \(11\) pass max_model_len \(10000\)"),
        (50, 15, r"65 tokens do not fit into the KV cache \(16 blocks of 4 tokens\); raise engine.kv_cache"),
        (0, 5, "prompt has 0 tokens"),
    ],
)
def test_a_row_that_can_never_fit_is_refused_at_admission(
    num_prompt_tokens: int, max_tokens: int, message: str
) -> None:
    harness = Harness(Settings(num_blocks=16, block_size=4))
    with pytest.raises(RowError, match=message):
        harness.add([1] * num_prompt_tokens, max_tokens)
    assert not harness.scheduler.has_unfinished
    assert not isinstance(harness.scheduler.schedule(), StepPlan)


def test_a_row_that_just_fits_runs_among_others() -> None:
    harness = Harness(Settings(num_blocks=16, block_size=4))
    for length in (3, 49, 7, 49, 60):
        harness.add([length] * length, 64 - length)
    harness.run()
    harness.check_outputs()


@pytest.mark.parametrize("max_batch_tokens", [1, 2, 5, 32])
@pytest.mark.parametrize("seed", range(4))
def test_nothing_waits_forever(seed: int, max_batch_tokens: int) -> None:
    """Every step computes a token of each decoding sequence, whatever else the budget is spent on."""
    rng = random.Random(seed)
    harness = Harness(Settings(rng.choice([8, 12, 100]), 4, max_batch_tokens, rng.choice([1, 3, 50])))
    for prompt in prefix_tree(rng, 30, longest=12):
        harness.add(prompt, rng.randint(1, 12))
    harness.on_plan = lambda plan: _check_all_decode(harness, plan)
    harness.run()
    assert harness.num_steps <= sum(s.num_prompt_tokens + s.params.max_tokens for s in harness.sequences)
    harness.check_outputs()


def _check_all_decode(harness: Harness, plan: StepPlan) -> None:
    planned = {step.seq_id for step in plan.sequences}
    assert planned >= {s.seq_id for s in harness.scheduler.running if not s.is_prefilling}


def test_sequence_steps_tell_the_runner_which_tokens_to_compute() -> None:
    """A step's tokens lie one sequence after another, and its block tables cover their contexts exactly."""
    harness = filled(TIGHT)
    harness.on_plan = _check_layout
    harness.run()


def _check_layout(plan: StepPlan) -> None:
    assert len(plan.token_ids) == len(plan.positions) == len(plan.slots) == sum(s.query_length for s in plan.sequences)
    end = 0
    for step in plan.sequences:
        assert isinstance(step, SequenceStep)
        start, end = end, end + step.query_length
        assert plan.positions[start:end] == tuple(range(step.context_length - step.query_length, step.context_length))
        assert len(step.block_table) == -(-step.context_length // TIGHT.block_size)
