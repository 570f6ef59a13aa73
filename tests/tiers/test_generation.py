"""Greedy completions are generate's whatever the KV cache lacks: recomputed, swapped, or brought back from disk."""

import itertools
import random

import numpy as np
import pytest
import torch
from engine.real_engine import Limits, Reference, build_engine, completions
from tiny_models import tiny_model

from batchpaged.engine.engine import Engine
from batchpaged.engine.sampling_params import SamplingParams
from batchpaged.engine.step import BlockCopy, BlockMove, MoveKind, StepPlan
from batchpaged.tiers.disk import DiskSlots, LostBlockError

NUM_TOKENS = 8
A_TENTH = 16  # blocks: of those that the rows together would take
ROOM = {
    "recomputed": {},
    "swapped": {"num_frames": 60},
    "on disk": {"num_frames": 4, "num_disk_slots": 60},
    "ahead": {"num_frames": 4, "num_disk_slots": 60, "steps_ahead": 1},
}


def prompts() -> list[list[int]]:
    rng = random.Random(3)
    documents = [[rng.randrange(10, 60) for _ in range(26)] for _ in range(5)]
    return [rng.choice(documents)[: rng.randint(5, 26)] + [rng.randrange(10, 60) for _ in range(4)] for _ in range(14)]


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_a_tenth_of_the_cache_gives_the_same_completions(name: str) -> None:
    reference = Reference(name, prompts(), NUM_TOKENS)
    engines = {}
    for how, room in ROOM.items():
        engines[how] = engine = build_engine(tiny_model(name), Limits(num_blocks=A_TENTH, block_size=4, **room))
        made = completions(engine, prompts(), SamplingParams(max_tokens=NUM_TOKENS))
        reference.check([completion.token_ids for completion in made])
    assert reference.num_decided > 80
    computed = {how: engine.scheduler.counts.prefilled for how, engine in engines.items()}
    assert computed["swapped"] < computed["recomputed"] and computed["on disk"] < computed["recomputed"]
    assert engines["on disk"].scheduler.tiers.counts.num_read > 0


def test_a_step_saves_before_it_copies_and_loads_after() -> None:
    """Two blocks change places: each is read before it is written."""
    runner = build_engine(tiny_model("llama"), Limits(num_blocks=4, block_size=4, num_frames=1))._runner
    tensors = [part.tensor for part in runner.backend.parts()]  # [num_kv_heads, num_blocks, block_size, dim]
    for tensor in tensors:
        tensor.copy_(torch.arange(4.0)[None, :, None, None].expand_as(tensor))
    moves, loads = (BlockMove(MoveKind.SAVE, 1, 0),), (BlockMove(MoveKind.LOAD, 0, 2),)
    runner._move_blocks(StepPlan((), (), (), (), (BlockCopy(2, 1, 4),), (), moves, loads))
    assert all(tensor[0, :, 0, 0].tolist() == [0, 2, 1, 3] for tensor in tensors)


def preempting(engine: Engine) -> Engine:
    """Whose last sequence is preempted every third step."""
    schedule = engine.scheduler.schedule

    def preempt_and_schedule() -> object:
        if engine.num_steps % 3 == 0 and len(engine.scheduler.running) > 1:
            engine.scheduler.preempt_last()
        return schedule()

    engine.scheduler.schedule = preempt_and_schedule
    return engine


@pytest.mark.parametrize("room", ROOM.values(), ids=ROOM)
def test_preempted_samples_and_log_probabilities_are_the_same(room: dict[str, int]) -> None:
    params = SamplingParams(max_tokens=12, temperature=1.0, n=2, logprobs=1, prompt_logprobs=2)
    given = prompts()[:8]
    expected = completions(build_engine(tiny_model("llama"), Limits()), given, params)
    limits = Limits(num_blocks=24, block_size=4, **room | {"steps_ahead": 0})
    engine = preempting(build_engine(tiny_model("llama"), limits))
    for found, wanted in zip(completions(engine, given, params), expected, strict=True):
        assert [output.token_ids for output in found.outputs] == [output.token_ids for output in wanted.outputs]
        np.testing.assert_allclose(found.prompt_logprobs.logprobs, wanted.prompt_logprobs.logprobs, atol=1e-4)
    assert engine.scheduler.num_preemptions > 5


def test_log_probabilities_of_prompts_are_not_looked_for_in_blocks_of_others() -> None:
    """Blocks of rows that did not want them, or wanted fewer, are in the cache already."""
    given = prompts()[:6]
    engine = build_engine(tiny_model("llama"), Limits())
    completions(engine, given, SamplingParams(max_tokens=2))
    for num_top in (1, 3):
        params = SamplingParams(max_tokens=2, prompt_logprobs=num_top)
        alone = completions(build_engine(tiny_model("llama"), Limits()), given, params)
        for found, wanted in zip(completions(engine, given, params), alone, strict=True):
            assert found.prompt_logprobs.top_ids.shape == (wanted.num_prompt_tokens - 1, num_top)
            np.testing.assert_allclose(found.prompt_logprobs.logprobs, wanted.prompt_logprobs.logprobs, atol=1e-4)


@pytest.mark.parametrize("steps_ahead", [0, 1])
def test_a_disk_that_fails_costs_time_and_no_completion(steps_ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    read, num_reads = DiskSlots.read, itertools.count()

    def read_until_it_breaks(disk: DiskSlots, slot: int, row: np.ndarray) -> None:
        read(disk, slot, row)
        if next(num_reads) == 5:
            raise LostBlockError("a bit has changed")

    monkeypatch.setattr(DiskSlots, "read", read_until_it_breaks)
    reference = Reference("llama", prompts(), NUM_TOKENS)
    limits = Limits(num_blocks=A_TENTH, block_size=4, num_frames=4, num_disk_slots=60, steps_ahead=steps_ahead)
    engine = build_engine(tiny_model("llama"), limits)
    made = completions(engine, prompts(), SamplingParams(max_tokens=NUM_TOKENS))
    reference.check([completion.token_ids for completion in made])
    tiers = engine.scheduler.tiers
    assert (tiers.counts.num_lost, tiers.costs.has_disk_failed) == (1, True)
