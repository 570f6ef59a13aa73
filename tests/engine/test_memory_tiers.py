"""Random schedules with tiers below the pool, where blocks are stored and sequences swapped, against the fake model alone."""

import random
from collections import Counter
from collections.abc import Callable

from engine.harness import SIZES, Harness, Settings, prefix_tree
from engine.test_sequence_groups import Groups, random_rows
from fake_model import FakeRunner
from hypothesis import event, given, settings, strategies as st

from batchpaged.engine.step import BlockMove, MoveKind, StepPlan
from batchpaged.errors import RowError
from batchpaged.tiers.disk import LostBlockError

NUM_SCHEDULES = 100
ENGINES = st.builds(
    Settings,
    num_blocks=st.integers(7, 40),
    num_hash_bits=st.sampled_from([1, 8, 128, 128]),
    steps_ahead=st.sampled_from([0, 1]),
    num_frames=st.integers(1, 40),
    num_disk_slots=st.integers(0, 40),
    **SIZES,
)


@settings(max_examples=60, deadline=None)
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
    check_counts(harness, kinds)
    event(f"loaded: {kinds[MoveKind.LOAD] > 0}, from disk: {kinds[MoveKind.READ] + kinds[MoveKind.LOAD_FROM_DISK] > 0}")


def check_counts(harness: Harness, kinds: Counter[MoveKind]) -> None:
    """They are those of the moves that were planned."""
    counts = harness.tiers.counts
    assert counts.num_saved == kinds[MoveKind.SAVE] and counts.num_written == kinds[MoveKind.WRITE]
    assert counts.num_loaded == kinds[MoveKind.LOAD] + kinds[MoveKind.LOAD_FROM_DISK]
    assert counts.num_read == kinds[MoveKind.READ] + kinds[MoveKind.LOAD_FROM_DISK]
    assert counts.most_in_host == min(counts.num_saved, counts.most_in_host, harness.tiers.host.num_places)
    assert counts.most_on_disk == min(counts.num_written, counts.most_on_disk, harness.tiers.disk.num_places)
    assert (counts.most_in_host > 0, counts.most_on_disk > 0) == (counts.num_saved > 0, counts.num_written > 0)


def random_schedule(seed: int) -> tuple[Groups, Counter[MoveKind]]:
    """Rows of one sequence, several, and beams, in an engine that is too small for them; -> and the moves as they are planned."""
    rng = random.Random(seed)
    size = rng.choice([1, 2, 4, 8])
    groups = Groups(
        Settings(
            num_blocks=rng.randint(max(7, 40 // size), max(10, 80 // size)),
            block_size=size,
            max_batch_tokens=rng.choice([3, 8, 64]),
            max_sequences=rng.choice([2, 5, 100]),
            num_hash_bits=rng.choice([1, 128, 128]),
            steps_ahead=rng.choice([0, 1]),
            num_frames=rng.choice([1, 3, 8, 30]),
            num_disk_slots=rng.choice([0, 0, 5, 40]),
        )
    )
    kinds = counting(groups.harness)
    for row in random_rows(rng, 20):
        try:
            groups.add(row)
        except RowError:
            continue
    return groups, kinds


def counting(harness: Harness) -> Counter[MoveKind]:
    """Kinds of moves, as they are planned."""
    kinds: Counter[MoveKind] = Counter()

    def count(plan: StepPlan) -> None:
        kinds.update(move.kind for move in (*plan.moves, *plan.loads))

    harness.on_plan = count
    return kinds


def test_random_schedules_end_and_give_what_each_row_gives_alone() -> None:
    """Forks and beams among them, preemption, swaps, and both tiers; pools hold about a tenth of what the rows would take."""
    total, kinds = Counter[str](), Counter[MoveKind]()
    for seed in range(NUM_SCHEDULES):
        groups, counted = random_schedule(seed)
        groups.run()
        groups.check_outputs()
        scheduler = groups.scheduler
        total.update(preempted=scheduler.num_preemptions, swapped=scheduler.tiers.counts.num_swaps)
        total.update(recomputed=scheduler.counts.recomputed, dropped=scheduler.tiers.counts.num_dropped)
        kinds += counted
    assert min(total[key] for key in ("preempted", "swapped", "recomputed", "dropped")) > 5, total
    assert set(kinds) == set(MoveKind), kinds


class LosingRunner(FakeRunner):
    """Now and then a block cannot be loaded, or memory does not suffice."""

    rng = random.Random(0)

    def start(self, plan: StepPlan) -> Callable:
        if plan.num_tokens > self.block_size and self.rng.random() < 0.02:
            raise MemoryError
        return super().start(plan)

    def _move(self, move: BlockMove) -> None:
        if "load" in move.kind.value and self.rng.random() < 0.2:
            raise LostBlockError("slot 1 is gone")
        super()._move(move)


def test_what_is_lost_is_computed_again() -> None:
    """As the engine does it: a step that fails is planned anew, without anything that was stored."""
    num_lost = num_short = 0
    for seed in range(40):
        harness = Harness(Settings(16, 4, 64, 100, num_frames=6, num_disk_slots=20))
        harness.runner = LosingRunner(16, 4, harness.runner.vocab_size)
        rng = random.Random(seed)
        for prompt in prefix_tree(rng, 25):
            harness.add(prompt, rng.randint(10, 30))
        while harness.scheduler.has_unfinished:
            plan = harness.scheduler.schedule()
            try:
                result = harness.runner.start(plan)
            except LostBlockError:
                num_lost += 1
                harness.scheduler.give_up()
                assert harness.tiers.host.num_used == harness.tiers.disk.num_used == 0
            except MemoryError:
                num_short += harness.scheduler.shrink(plan)
            else:
                harness.scheduler.start(plan)
                harness.scheduler.update(plan, result())
            harness.scheduler.check()
        harness.check_outputs()
    assert num_lost > 20 and num_short > 5
