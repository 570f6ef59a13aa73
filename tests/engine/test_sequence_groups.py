"""Sequences of one row that share blocks: what they generate, and that every block is accounted for, under any pressure."""

import random
from collections import Counter
from dataclasses import dataclass

import pytest
from engine.harness import EOS, SIZES, VOCAB_SIZE, Harness, Settings, finish_reason, prefix_tree
from fake_model import reference_tokens, top_logprobs
from hypothesis import event, given, settings, strategies as st

from batchpaged.engine.beam_search import BeamSearch
from batchpaged.engine.sampling_params import SamplingParams
from batchpaged.engine.sequence import BeamGroup, Fork, Hypothesis, Sequence
from batchpaged.errors import RowError

ENGINES = st.builds(
    Settings,
    num_blocks=st.integers(20, 60),
    prefix_cache=st.sampled_from([True, True, False]),
    num_hash_bits=st.sampled_from([1, 128, 128]),
    steps_ahead=st.sampled_from([0, 1]),
    **SIZES,
)


@dataclass(frozen=True)
class Row:
    prompt: list[int]
    max_tokens: int
    size: int  # sequences
    is_beam: bool
    length_penalty: float = 1.0
    early_stopping: bool | str = False

    @property
    def params(self) -> SamplingParams:
        if not self.is_beam:
            return SamplingParams(max_tokens=self.max_tokens, temperature=1.0, n=self.size)
        return SamplingParams(
            max_tokens=self.max_tokens,
            beam_width=self.size,
            n=self.size,
            length_penalty=self.length_penalty,
            early_stopping=self.early_stopping,
        )


def random_rows(rng: random.Random, num_rows: int) -> list[Row]:
    """Some have one sequence, some several, some beams."""
    return [
        Row(
            prompt,
            rng.randint(1, 12),
            rng.randint(1, 4),
            rng.random() < 0.5,
            rng.choice([0.0, 1.0, 2.0, -0.5]),
            rng.choice([False, True, "never"]),
        )
        for prompt in prefix_tree(rng, num_rows)
    ]


class Groups:
    """A harness, and the rows given to it."""

    def __init__(self, engine: Settings) -> None:
        self.harness = Harness(engine)
        self.rows: dict[int, Row] = {}  # by the seq_id of the first sequence
        self.finished: list[Sequence] = []
        self._next_id = 0

    @property
    def scheduler(self):
        return self.harness.scheduler

    def add(self, row: Row) -> None:
        first, params = self._next_id, row.params
        sequence = Sequence(first, list(row.prompt), len(row.prompt), params, seed=first)
        if row.is_beam:
            sequence.num_top = 2 * row.size
            sequence.beams = BeamGroup([sequence], 2 * row.size)
        else:
            sequence.forks = tuple(Fork(first + i, first + i) for i in range(1, row.size))
        self.scheduler.add(sequence)
        self.rows[first] = row
        self._next_id += row.size

    def step(self) -> None:
        self.finished += self.harness.step()

    def run(self) -> None:
        for _ in range(20_000):
            if not self.scheduler.has_unfinished:
                break
            self.step()
        assert not self.scheduler.has_unfinished
        assert self.harness.pool.num_available == self.harness.pool.num_blocks
        assert not any(self.harness.pool.reference_counts)

    def check_outputs(self) -> None:
        """Each sequence is what it would be alone, and a row's prompt counts once."""
        by_row: dict[int, list[Sequence]] = {first: [] for first in self.rows}
        for sequence in self.finished:
            by_row[sequence.row].append(sequence)
        for first, row in self.rows.items():
            sequences = sorted(by_row[first], key=lambda s: s.seq_id)
            assert [s.seq_id for s in sequences] == list(range(first, first + row.size))
            if row.is_beam:
                assert [(s.generated_token_ids, s.score) for s in sequences] == expected_beams(row)
            else:
                for s in sequences:
                    expected = reference_tokens(row.prompt, row.max_tokens, VOCAB_SIZE, EOS, s.seed)
                    assert s.generated_token_ids == expected
            assert sequences[0].num_cached_tokens + sequences[0].num_prefilled_tokens == len(row.prompt)
            if not row.is_beam:
                assert all(s.num_cached_tokens == s.num_prefilled_tokens == 0 for s in sequences[1:])
        counts = self.scheduler.counts
        assert counts.cached + counts.prefilled == sum(len(row.prompt) for row in self.rows.values())


def expected_beams(row: Row) -> list[tuple[list[int], float]]:
    """Without blocks, batch and scheduler."""
    return [(h.token_ids, float(h.score)) for h in search(row)]


def search(row: Row) -> list[Hypothesis]:
    beams = [Sequence(0, list(row.prompt), len(row.prompt), row.params, 0)]
    group, rules = BeamGroup(beams, 2 * row.size), BeamSearch(finish_reason)
    while True:
        group.tops = {b.seq_id: top_logprobs(b.token_ids, VOCAB_SIZE, 2 * row.size) for b in group.members}
        chosen = rules.advance(group)
        if chosen is None:
            return group.hypotheses
        tokens = [[*group.members[c.beam].token_ids, c.token_id] for c in chosen]
        group.members = [Sequence(i, ids, len(row.prompt), row.params, 0) for i, ids in enumerate(tokens)]


@settings(max_examples=150, deadline=None)
@given(engine=ENGINES, seed=st.integers(0, 10**6))
def test_any_mixture_of_groups_gives_each_row_what_it_gets_alone(engine: Settings, seed: int) -> None:
    rng, groups = random.Random(seed), Groups(engine)
    for row in random_rows(rng, 12):
        try:
            groups.add(row)
        except RowError:
            continue
        while rng.random() < 0.3 and groups.scheduler.has_unfinished:
            groups.step()
        if rng.random() < 0.2 and groups.scheduler.running and not groups.harness.started:
            groups.scheduler.preempt_last()
            groups.scheduler.check()
    groups.run()
    groups.check_outputs()
    event(f"preempted: {groups.scheduler.num_preemptions > 0}")


def test_groups_are_preempted_and_blocks_are_copied() -> None:
    """What the test above must have met."""
    seen: Counter[str] = Counter()
    for seed in range(40):
        rng = random.Random(seed)
        groups = Groups(Settings(rng.choice([24, 40]), 4, rng.choice([3, 8, 64]), 100, prefix_cache=seed % 3 > 0))
        count_restored(groups, seen)
        for row in random_rows(rng, 12):
            try:
                groups.add(row)
            except RowError:
                seen["refused"] += 1
        while groups.scheduler.has_unfinished:
            groups.step()
        groups.check_outputs()
        counts = groups.scheduler.groups.counts
        seen += Counter(preempted=groups.scheduler.num_preemptions, shared=counts.num_shared_blocks)
        seen += Counter(copied=counts.num_copied_blocks, saved=counts.most_saved)
    assert all(seen[what] > 4 for what in ("preempted", "shared", "copied", "saved", "restored")), seen


def count_restored(groups: Groups, seen: Counter[str]) -> None:
    restore = groups.scheduler.groups.restore

    def counted(leader: Sequence) -> list[Sequence]:
        seen["restored"] += 1
        return restore(leader)

    groups.scheduler.groups.restore = counted


@pytest.mark.parametrize("is_beam", [False, True])
def test_a_group_has_its_prompt_once_and_copies_only_the_block_it_ends_in(is_beam: bool) -> None:
    groups = Groups(Settings(block_size=4))
    groups.add(Row(list(range(1, 11)), 2, 4, is_beam))  # two full blocks, and one of two slots
    groups.step()
    if is_beam:
        assert len(groups.scheduler.running) == 4
    assert groups.harness.pool.num_referenced == 3
    groups.step()
    counts = groups.scheduler.groups.counts
    assert groups.scheduler.counts.prefilled == 10
    if not groups.scheduler.running:  # every sequence has ended
        return
    assert groups.harness.pool.num_referenced == 2 + 4
    assert counts.num_copied_blocks == 3


def test_a_beam_search_that_could_never_hold_its_beams_is_refused() -> None:
    groups = Groups(Settings(num_blocks=9, block_size=4))
    groups.add(Row([1] * 9, 3, 4, True))  # 2 + 4 * 1 blocks
    with pytest.raises(RowError, match="14 tokens in 4 beams do not fit"):
        groups.add(Row([1] * 9, 5, 4, True))  # 2 + 4 * 2
    groups.run()


def test_beams_that_come_back_preempt_nobody_whose_token_is_not_known_yet() -> None:
    """They need blocks for what they had generated, while a step runs in which another row samples: its token is waited for first."""
    groups = Groups(Settings(num_blocks=12, block_size=4, max_batch_tokens=16, max_sequences=100, steps_ahead=1))
    for row in (
        Row([3, 3, 2, 3, 2, 1, 3, 2], 6, 1, False),
        Row([2, 3, 1, 3, 2, 2], 4, 3, True),
        Row([2, 3, 3], 3, 3, True),
        Row([2, 3, 3, 1], 2, 2, False),
    ):
        groups.add(row)
    num_waited = 0
    while groups.scheduler.has_unfinished:
        running = groups.scheduler.running
        come_back = [s for s in running if s.beams is not None and s.beams.is_parted and s.is_prefilling]
        is_pending = any(s.num_pending_tokens and not s.needs_known_tokens for s in running)
        num_steps = groups.harness.num_steps
        groups.step()  # asserts that nobody is preempted before its token is known
        num_waited += bool(come_back) and is_pending and groups.harness.num_steps == num_steps
    groups.check_outputs()
    assert num_waited > 0
