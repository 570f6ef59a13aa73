"""What is stored, pushed out, read ahead, loaded or swapped, case by case."""

import random
from collections import Counter

import pytest
from engine.harness import Harness, Settings, free_moves, prefix_tree
from engine.test_memory_tiers import counting

from batchpaged.engine.cached_block import CachedBlock, Tier
from batchpaged.engine.memory_tiers import MemoryTiers, TierCounts
from batchpaged.engine.sampling_params import SamplingParams
from batchpaged.engine.sequence import Sequence
from batchpaged.engine.step import MoveKind, StepPlan
from batchpaged.tiers.costs import TierCosts


@pytest.mark.parametrize(
    ("costs", "expected"),
    [
        (TierCosts(token=1.0, save=2.0, load=2.5), set()),  # 4 tokens are computed sooner
        (TierCosts(token=1.0, save=1.0, load=1.0), {MoveKind.SAVE, MoveKind.LOAD}),
        (TierCosts(token=1.0, save=1.0, load=1.0, read=9.0), {MoveKind.SAVE, MoveKind.LOAD}),
        (TierCosts(token=1.0, save=1.0, load=1.0, read=1.0, wait=9.0), {MoveKind.SAVE, MoveKind.LOAD}),
        (TierCosts(token=1.0, save=1.0, load=1.0, read=1.0, has_disk_failed=True), {MoveKind.SAVE, MoveKind.LOAD}),
        (TierCosts(token=1.0, save=1.0, load=1.0, read=1.0), set(MoveKind) - {MoveKind.LOAD_FROM_DISK}),  # all is read ahead
    ],
)
def test_only_what_is_sooner_than_computing_is_moved(costs: TierCosts, expected: set[MoveKind]) -> None:
    kinds, num_swaps = Counter[MoveKind](), 0
    for seed in range(12):
        harness = Harness(Settings(16, 4, 16, 100, num_frames=6, num_disk_slots=20, costs=costs))
        counted, rng = counting(harness), random.Random(seed)
        for prompt in prefix_tree(rng, 25):
            harness.add(prompt, rng.randint(10, 30))
        harness.run()
        harness.check_outputs()
        kinds += counted
        num_swaps += harness.scheduler.tiers.counts.num_swaps
    assert set(kinds) == expected
    assert (num_swaps > 0) == bool(expected)


@pytest.mark.parametrize(
    ("costs", "prompt_logprobs"),
    [(TierCosts(token=1.0, save=2.0, load=2.5), None), (TierCosts(token=1.0, save=0.0, load=0.0, read=0.0), 1)],
    ids=["too slow", "of what they do not hold"],
)
def test_tiers_that_take_nothing_change_no_step(costs: TierCosts, prompt_logprobs: int | None) -> None:
    """Above all, nothing that is needed is evicted because they seem to have room."""
    num_preemptions = 0
    for seed in range(20):
        without, having = (Harness(Settings(14, 4, 16, 100, costs=costs, **more)) for more in ({}, {"num_frames": 30}))
        assert steps(without, seed, prompt_logprobs) == steps(having, seed, prompt_logprobs)
        assert having.tiers.counts == TierCounts()
        num_preemptions += having.scheduler.num_preemptions
    assert num_preemptions > 5


def steps(harness: Harness, seed: int, prompt_logprobs: int | None) -> list[StepPlan]:
    """Of prompts in planned order."""
    plans: list[StepPlan] = []
    harness.on_plan = plans.append
    rng = random.Random(seed)
    for prompt in sorted(prefix_tree(rng, 25)):
        harness.add(prompt, rng.randint(10, 30), prompt_logprobs)
    harness.run()
    harness.check_outputs()
    return plans


def test_of_stored_blocks_the_leading_ones_that_gain_most_are_loaded() -> None:
    """With a disk slower than computing, those behind a block on disk may still make up for it."""
    harness = Harness(Settings(num_frames=4, num_disk_slots=4, costs=TierCosts(token=1.0, save=0.0, load=1.0, read=5.0)))

    def nodes(places: str) -> tuple[_Stored, ...]:
        return tuple(_Stored(harness.tiers.host if place == "h" else harness.tiers.disk) for place in places)

    loaded = {places: len(harness.tiers.worth_loading(nodes(places))) for places in ("h", "d", "hd", "dh", "hdh", "dddh", "")}
    assert loaded == {"h": 1, "d": 0, "hd": 1, "dh": 2, "hdh": 3, "dddh": 0, "": 0}


class _Stored:
    """Of a stored node all that is asked for here."""

    def __init__(self, tier: object) -> None:
        self.place = self
        self.tier = tier


@pytest.mark.parametrize(
    ("room", "num_tokens", "num_cached", "expected"),
    [
        ({"num_frames": 5}, 21, 5, 5),
        ({"num_frames": 5}, 21, 3, 3),  # what is not cached cannot be found
        ({"num_frames": 5}, 20, 5, 4),  # the last token is computed again, whatever is there
        ({"num_frames": 4}, 21, 5, 0),
        ({"num_frames": 3, "num_disk_slots": 2}, 21, 5, 5),
        ({"num_frames": 3, "num_disk_slots": 2, "costs": TierCosts(token=1.0, save=0.0, load=1.0, read=3.0)}, 21, 5, 0),
        ({"num_frames": 5, "costs": TierCosts(token=1.0, save=2.0, load=2.0)}, 21, 5, 0),
    ],
)
def test_a_preempted_sequence_is_swapped_where_there_is_room(
    room: dict[str, object], num_tokens: int, num_cached: int, expected: int
) -> None:
    tiers = Harness(Settings(block_size=4, **room)).tiers
    for prompt_logprobs, num_kept in ((None, expected), (1, 0)):
        params = SamplingParams(max_tokens=9, prompt_logprobs=prompt_logprobs)
        sequence = Sequence(0, [1] * num_tokens, 13, params, seed=0, num_cached_blocks=num_cached)
        assert tiers.num_to_swap(sequence) == num_kept


def test_a_place_that_was_given_up_last_is_taken_last() -> None:
    """It may still be read or written: who takes it has to wait for that."""
    tier, nodes = Tier(3), [CachedBlock(None, bytes([i]), (i,), None, 0) for i in range(4)]
    assert [tier.take(node, 1) for node in nodes[:2]] == [0, 1]
    MemoryTiers(1, 0, 4, free_moves()).give_up(nodes[0])
    assert [tier.take(node, 1) for node in nodes[2:]] == [2, 0]


@pytest.mark.parametrize(
    ("num_frames", "num_disk_slots", "num_in_host", "num_stored"),
    [
        (1, 0, 1, 1),
        (4, 0, 4, 4),
        (2, 3, 2, 5),
        (8, 0, 8, 8),
        (10, 3, 9, 10),  # one frame in eight is kept free
        (11, 3, 10, 10),
    ],
)
def test_where_a_prompt_does_not_fit_its_beginning_is_kept(
    num_frames: int, num_disk_slots: int, num_in_host: int, num_stored: int
) -> None:
    """Its end is worth nothing without; and it is the end that is evicted first."""
    harness = Harness(Settings(12, 4, 64, max_sequences=1, num_frames=num_frames, num_disk_slots=num_disk_slots))
    kinds = counting(harness)
    prompt = [1 + i % 7 for i in range(40)]
    for given in ([*prompt, 1], [9] * 45, [*prompt, 2]):
        sequence = harness.add(given, 1)
    harness.run()
    harness.check_outputs()
    assert sequence.num_cached_tokens == 4 * num_stored
    assert kinds[MoveKind.LOAD] == num_in_host and kinds[MoveKind.READ] == 0, "nothing is exchanged for what is used with it"


@pytest.mark.parametrize(
    ("num_disk_slots", "uses", "in_host", "on_disk", "num_dropped"),
    [
        (0, [5, 3], [5, 3], [], 0),
        (0, [5, 3, 9], [5, 3], [], 1),  # what comes is needed last
        (0, [5, 3, 5], [5, 3], [], 1),
        (0, [5, 3, 9, 1], [3, 1], [], 2),
        (1, [5, 3, 9], [9, 3], [5], 0),  # to disk leads no way but this
        (1, [5, 3, 9, 1], [3, 1], [5], 1),
        (1, [9, 8, 7, 6], [7, 6], [8], 1),
    ],
)
def test_what_is_needed_last_is_pushed_out(
    num_disk_slots: int, uses: list[int], in_host: list[int], on_disk: list[int], num_dropped: int
) -> None:
    """Two frames, and blocks that are evicted in this order."""
    tiers, dropped = tiers_alone(2, num_disk_slots), []
    tiers.on_drop = dropped.append
    taken = [tiers.take_in(used_at(use), use) for use in uses]
    assert content(tiers) == (in_host, on_disk)
    assert tiers.counts.num_dropped == num_dropped == len(dropped) + taken.count(False)


def tiers_alone(num_frames: int, num_disk_slots: int, read: float = 0.0) -> MemoryTiers:
    """Nodes are named by when they are used next."""
    tiers = MemoryTiers(num_frames, num_disk_slots, 4, TierCosts(token=1.0, save=0.0, load=0.0, read=read))
    tiers.next_use = lambda block_hash: block_hash[0]
    return tiers


def used_at(use: int, root: str | None = None) -> CachedBlock:
    return CachedBlock(root, bytes([use]), (use,), root, 0)


def content(tiers: MemoryTiers) -> tuple[list[int], list[int]]:
    """(in host memory, on disk), what is needed last in front."""
    in_host, on_disk = ([node.hash[0] for node in tier.queue.in_order()] for tier in (tiers.host, tiers.disk))
    return in_host, on_disk


def test_what_no_tier_can_take_is_refused() -> None:
    tiers = tiers_alone(1, 1, read=9.0)
    private = Sequence(0, [1], 1, SamplingParams(prompt_logprobs=1), seed=0)
    assert not tiers.take_in(used_at(5, private.root), 0)
    assert tiers.take_in(used_at(5), 0) and tiers.take_in(used_at(3), 1)
    assert content(tiers) == ([3], []), "the disk is too slow"
    tiers.hold(tiers.host.queue.in_order())
    assert not tiers.take_in(used_at(1), 2), "all places are about to be loaded from"


def test_what_is_needed_sooner_is_read_ahead_and_changes_places() -> None:
    tiers, nodes = tiers_alone(2, 2), {use: used_at(use) for use in (5, 3, 9)}
    for use, node in nodes.items():
        tiers.take_in(node, use)
    assert content(tiers) == ([9, 3], [5])
    for _ in range(2):
        tiers.read_ahead([nodes[5]])
        assert content(tiers) == ([5, 3], [9])
        tiers.read_ahead([nodes[9]])  # not sooner than anything


def test_what_is_dropped_for_another_one_is_not_read_ahead() -> None:
    tiers, nodes = tiers_alone(1, 2), {use: used_at(use) for use in (9, 5, 7)}
    for use, node in nodes.items():
        tiers.take_in(node, use)
    assert content(tiers) == ([7], [9, 5])
    tiers.read_ahead([nodes[5], nodes[9]])
    assert content(tiers) == ([5], [7]) and nodes[9].place is None


def test_a_block_may_go_with_the_one_that_was_to_make_room_for_it() -> None:
    """As where hashes collide: below the block that is needed last is one that is needed soon."""
    tiers, nodes = tiers_alone(1, 2), {use: used_at(use) for use in (9, 5, 7)}
    for use, node in nodes.items():
        tiers.take_in(node, use)
    tiers.on_drop = lambda dropped: tiers.drop(nodes[5]) if dropped is nodes[9] else None
    tiers.read_ahead([nodes[5]])
    assert content(tiers) == ([], [7])
    tiers, nodes = tiers_alone(1, 1), {use: used_at(use) for use in (9, 7)}
    for use, node in nodes.items():
        tiers.take_in(node, use)
    tiers.on_drop = lambda dropped: tiers.drop(nodes[7]) if dropped is nodes[9] else None
    assert tiers.take_in(used_at(3), 0)
    assert content(tiers) == ([3], [])


@pytest.mark.parametrize(("slow", "num_loaded"), [("read", 2), ("load", 0)])
def test_what_has_become_slower_than_computing_is_not_loaded(slow: str, num_loaded: int) -> None:
    harness = Harness(Settings(12, 4, 64, max_sequences=1, num_frames=2, num_disk_slots=3))
    kinds = counting(harness)
    prompt = [1 + i % 7 for i in range(40)]
    for given in ([*prompt, 1], [9] * 45, [*prompt, 2]):
        sequence = harness.add(given, 1)
    while harness.tiers.disk.num_used < 3:
        harness.step()
    setattr(harness.tiers.costs, slow, 100.0)
    harness.run()
    harness.check_outputs()
    assert sequence.num_cached_tokens == 4 * num_loaded and kinds[MoveKind.LOAD_FROM_DISK] == 0


def test_running_rows_take_blocks_that_can_be_stored_rather_than_be_preempted() -> None:
    num_preemptions = [0, 0]
    for seed in range(10):
        for index, num_frames in enumerate((0, 30)):
            harness = Harness(Settings(14, 4, 16, 100, num_frames=num_frames))
            steps(harness, seed, None)
            num_preemptions[index] += harness.scheduler.num_preemptions
    assert num_preemptions[1] < num_preemptions[0]


def test_a_swapped_sequence_computes_no_full_block_again() -> None:
    """Two sequences grow until one must go; what it had comes back from host memory."""
    swapped = grow_two(Settings(num_blocks=15, block_size=4, max_batch_tokens=64, num_frames=15))
    computed = grow_two(Settings(num_blocks=15, block_size=4, max_batch_tokens=64))
    assert swapped.scheduler.num_preemptions == computed.scheduler.num_preemptions == 1
    assert swapped.scheduler.tiers.counts.num_swaps == 1
    assert swapped.scheduler.counts.recomputed < 4 < computed.scheduler.counts.recomputed


def grow_two(engine: Settings) -> Harness:
    harness = Harness(engine)
    rng = random.Random(67)  # neither ends early
    for _ in range(2):
        harness.add([rng.randrange(1, 9) for _ in range(8)], 36)
    harness.run()
    harness.check_outputs()
    return harness


@pytest.mark.parametrize(("gain", "is_used_up"), [(1.1, True), (1.5, True), (4.0, False)])
def test_a_tier_that_saves_mostly_in_vain_is_filled_little_more_than_once(gain: float, is_used_up: bool) -> None:
    """It has a tenth of the places that are useful; a block costs 1 to be saved and gains this when it is loaded."""
    free = run_shuffled(32, 1000.0)
    assert free.num_saved > 2 * free.num_loaded > 1000
    counts = run_shuffled(32, gain)
    assert gain * counts.num_loaded - counts.num_saved >= -2 * 32, "what has been dropped, and what is there yet"
    assert (counts.num_saved < free.num_saved // 2) is is_used_up
    assert is_used_up or counts == free


def run_shuffled(num_frames: int, gain: float) -> TierCounts:
    """Of 40 prefixes of 8 blocks, 10 rows each, in random order."""
    costs = TierCosts(token=(gain + 0.5) / 4, save=1.0, load=0.5)
    harness, rng = Harness(Settings(60, 4, 64, 16, num_frames=num_frames, costs=costs)), random.Random(0)
    prefixes = [[rng.randrange(1, 19) for _ in range(32)] for _ in range(40)]
    for prefix in rng.sample(prefixes * 10, 400):
        harness.add([*prefix, *(rng.randrange(1, 19) for _ in range(6))], 4)
    harness.run()
    return harness.tiers.counts


def test_what_storing_has_cost_is_made_up_for_by_what_is_loaded() -> None:
    """A block costs 1 to be saved, and gains 2 less what it takes to read it."""
    tiers = MemoryTiers(2, 2, 4, TierCosts(token=0.75, save=1.0, load=1.0, read=0.5))
    tiers.next_use = lambda block_hash: block_hash[0]
    for use in (90, 80, 70, 60, 50, 40, 30):  # four have a place, three are dropped
        assert tiers.take_in(used_at(use), use)
    assert not tiers.take_in(used_at(20), 20), "more was lost than it takes to fill the host tier"
    assert tiers.num_free == 0
    first, second = (tier.queue.first() for tier in (tiers.host, tiers.disk))
    tiers.hold([second])
    tiers.load(second, 0)
    assert not tiers.take_in(used_at(20), 20), "from disk it has gained half as much again as it cost"
    tiers.hold([first])
    tiers.load(first, 1)
    tiers.start()
    assert tiers.take_in(used_at(20), 20)


def test_what_is_lost_with_the_disk_does_not_count_against_storing() -> None:
    tiers = tiers_alone(2, 5)
    tiers.costs.save = 1.0
    for use in (9, 8, 7, 6, 5):
        tiers.take_in(used_at(use), use)
    tiers.abandon()
    assert tiers.take_in(used_at(5), 0)
