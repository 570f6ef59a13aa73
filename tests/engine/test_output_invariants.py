"""What comes out depends on a row alone: not on order, batch, chunking, preemption, cache, or its place in the batch."""

import dataclasses
import random
from collections.abc import Iterable

import pytest
import torch
from engine.harness import Harness, Settings, prefix_tree
from engine.real_engine import Limits, build_engine
from tiny_models import tiny_model

from batchpaged.engine import sampler
from batchpaged.engine.sampling_params import SamplingParams
from batchpaged.engine.step import SampleRequest

GRID = [
    Settings(num_blocks, block_size, max_batch_tokens, max_sequences, prefix_cache)
    for num_blocks, block_size in ((400, 1), (200, 4), (40, 16), (20, 4))
    for max_batch_tokens, max_sequences in ((1, 1), (5, 8), (64, 3), (1000, 100))
    for prefix_cache in (True, False)
]


@pytest.mark.parametrize("settings", GRID)
def test_greedy_output_does_not_depend_on_order_batch_chunking_preemption_or_cache(settings: Settings) -> None:
    prompts = prefix_tree(random.Random(1), 25)
    orders = [prompts, sorted(prompts), prompts[::-1]]
    for order in orders:
        harness = Harness(settings)
        for prompt in order:
            harness.add(prompt, 12)
        harness.run()
        harness.check_outputs()  # against the fake model, which sees one prompt at a time


def test_greedy_output_is_compared_with_preemptions_among_it() -> None:
    """The grid above is not all calm: where the pool is small, sequences are preempted."""
    harness = Harness(next(s for s in GRID if s.num_blocks == 20 and s.max_sequences == 100))
    for prompt in prefix_tree(random.Random(1), 25):
        harness.add(prompt, 12)
    harness.run()
    assert harness.scheduler.num_preemptions > 0


SAMPLED = SamplingParams(temperature=0.9, top_p=0.95, top_k=40, min_p=0.01)


def sample(logits: torch.Tensor, rows: list[SampleRequest]) -> list[int]:
    return sampler.sample(logits, rows).tolist()


def _request(row: int, position: int = 7) -> SampleRequest:
    return SampleRequest(SAMPLED, seed=1000 + row, num_tokens=position, token_ids=None)


def test_sampled_output_depends_on_the_rows_own_seed_not_on_its_place_in_the_batch() -> None:
    logits = torch.randn(32, 100, generator=torch.Generator().manual_seed(0))
    together = sample(logits.clone(), [_request(row) for row in range(32)])
    for order in (list(range(31, -1, -1)), random.Random(0).sample(range(32), 32), [3], [9, 3, 9]):
        shuffled = sample(logits[order].clone(), [_request(row) for row in order])
        assert shuffled == [together[row] for row in order]


def test_sampled_output_differs_between_rows_and_positions() -> None:
    logits = torch.zeros(64, 1000)
    params = SamplingParams(temperature=1.0)
    rows = sample(logits.clone(), [SampleRequest(params, seed, 7, None) for seed in range(64)])
    positions = sample(logits.clone(), [SampleRequest(params, 5, position, None) for position in range(64)])
    neighbours = sample(logits.clone(), [SampleRequest(params, 2**64 - 1 - seed, 7, None) for seed in range(64)])
    for tokens in (rows, positions, neighbours):
        assert len(set(tokens)) > 55


@pytest.mark.parametrize(
    "limits", [Limits(max_batch_tokens=400), Limits(max_batch_tokens=5, max_sequences=2, block_size=16)]
)
def test_sampled_completions_of_the_engine_follow_the_row_key(limits: Limits) -> None:
    prompts = [[5, 6, 7, 8, 9, 10, 11, 12, 13, 20 + i] for i in range(6)]
    params = SamplingParams(max_tokens=6, temperature=1.0, seed=3, ignore_eos=True)
    expected = _sampled(Limits(max_sequences=1, prefix_cache=False), prompts, params, order=range(6))
    assert _sampled(limits, prompts, params, order=(3, 0, 5, 1, 4, 2)) == expected
    assert _sampled(limits, prompts, dataclasses.replace(params, seed=4), order=range(6)) != expected


def _sampled(
    limits: Limits, prompts: list[list[int]], params: SamplingParams, order: Iterable[int]
) -> dict[int, tuple[int, ...]]:
    engine = build_engine(tiny_model(), limits)
    for row in order:
        engine.add(prompts[row], params, f"row {row}", row)
    outputs = {}
    while engine.has_unfinished:
        outputs |= {completion.tag: completion.token_ids for completion in engine.step()}
    return outputs
