"""The scheduler where rows have adapters, and grammars that force tokens, against the fake model one prompt at a time."""

import random

import xxhash
from engine.harness import EOS, VOCAB_SIZE, Harness, Settings
from engine.test_scheduler_properties import ENGINES, ROWS
from fake_model import next_token
from hypothesis import event, given, settings, strategies as st

NUM_BLOCKS = 60  # at least: room for the longest row of ROWS


class FakeGrammar:
    """Forces none to four tokens after every choice; which ones depends on all that was written."""

    error, is_over = None, False

    def __init__(self) -> None:
        self.ids: list[int] = []

    def accept(self, token_id: int) -> None:
        self.ids.append(token_id)

    def forced(self) -> list[int]:
        return forced_after(self.ids)


def forced_after(ids: list[int]) -> list[int]:
    digest = xxhash.xxh3_64_intdigest(repr(ids).encode())
    return [(digest >> (8 * i)) % VOCAB_SIZE for i in range(digest % 5)]


def expected(prompt: list[int], max_tokens: int, has_grammar: bool) -> list[int]:
    ids: list[int] = []
    while True:
        forced = [next_token(prompt + ids, VOCAB_SIZE)]
        if has_grammar:
            forced += forced_after([*ids, *forced])
        for token in forced:
            ids.append(token)
            if token == EOS or len(ids) == max_tokens:
                return ids


@settings(max_examples=150, deadline=None)
@given(engine=ENGINES, steps_ahead=st.sampled_from([0, 1]), rows=ROWS, rng=st.randoms(use_true_random=False))
def test_any_run_equals_one_prompt_at_a_time(engine, steps_ahead, rows, rng: random.Random) -> None:
    """Whatever shares a prompt, is preempted, cut by the budget or collides: no adapter reads another's blocks, and forced
    tokens are computed like any others."""
    size = {"num_blocks": max(engine.num_blocks, NUM_BLOCKS), "steps_ahead": steps_ahead}
    harness = Harness(Settings(**{**vars(engine), **size}))
    has_grammar = []
    for row in rows:
        has_grammar.append(rng.random() < 0.5)
        grammar = FakeGrammar() if has_grammar[-1] else None
        harness.add(row, rng.randint(1, 30), adapter=rng.choice([None, "a", "b"]), grammar=grammar)
        while rng.random() < 0.3 and harness.scheduler.has_unfinished:
            harness.step()
            if not harness.started and harness.scheduler.running and rng.random() < 0.1:
                harness.scheduler.preempt_last()
    harness.run()
    for sequence, is_forced in zip(harness.sequences, has_grammar, strict=True):
        prompt = sequence.token_ids[: sequence.num_prompt_tokens]
        assert sequence.generated_token_ids == expected(prompt, sequence.params.max_tokens, is_forced)
        assert sequence.num_cached_tokens + sequence.num_prefilled_tokens == sequence.num_prompt_tokens
    counts = harness.scheduler.counts
    assert counts.generated == sum(s.num_generated_tokens for s in harness.sequences)
    assert counts.prefilled == sum(s.num_prefilled_tokens for s in harness.sequences)
    assert (counts.forced > 0) <= any(has_grammar)
    event(f"forced: {counts.forced > 0}, preempted: {harness.scheduler.num_preemptions > 0}")


def test_prompts_of_one_adapter_share_and_of_two_do_not() -> None:
    harness = Harness(Settings(block_size=4, max_batch_tokens=64))
    for adapter in ("a", "a", "b", None, None):
        harness.add(range(10), 1, adapter=adapter)
    harness.run()
    assert harness.scheduler.counts.prefilled == 3 * 10 + 2  # of an equal prompt the last token alone
