"""What a run will need, worked out by hand."""

import dataclasses

import pytest
from planning.prompts import summary_of

from batchpaged.planning.cost import ModelCost
from batchpaged.planning.estimate import Estimate, estimate

COST = ModelCost(flops_per_prefill_token=10.0, flops_per_decode_token=13.0, kv_bytes_per_token=4)
# 4 rows of 10 tokens, 8 of them shared by all; 1 failed row
SUMMARY = summary_of([[*range(8), 20 + i, 30] for i in range(4)] + [None])


def test_arithmetic_is_that_of_unique_tokens_and_full_completions() -> None:
    assert SUMMARY.num_unique_tokens == 8 + 4 * 2
    assert estimate(SUMMARY, COST, max_tokens=5, max_rows=100).flops == 16 * 10.0 + 4 * 5 * 13.0


def test_memory_is_for_as_many_rows_as_run_at_once_and_the_longest() -> None:
    """2 rows with their share of unique tokens (4) and 5 new ones each; the shared rest of a prompt (6); the longest (10)."""
    assert estimate(SUMMARY, COST, max_tokens=5, max_rows=2).kv_bytes_needed == (2 * (4 + 5) + 6 + 10) * 4
    few = estimate(SUMMARY, COST, max_tokens=5, max_rows=2).kv_bytes_needed
    assert few < estimate(SUMMARY, COST, max_tokens=5, max_rows=4).kv_bytes_needed
    assert estimate(SUMMARY, COST, 5, 4) == estimate(SUMMARY, COST, 5, 400), "there are only 4 rows"


def test_sharing_lowers_what_is_needed() -> None:
    alone = dataclasses.replace(SUMMARY, num_unique_tokens=SUMMARY.num_prompt_tokens)
    shared, unshared = (estimate(summary, COST, 5, 100) for summary in (SUMMARY, alone))
    assert shared.flops < unshared.flops
    assert shared.kv_bytes_needed < unshared.kv_bytes_needed


@pytest.mark.parametrize("prompts", [[], [None]])
def test_nothing_to_run_needs_nothing(prompts: list[None]) -> None:
    assert estimate(summary_of(prompts), COST, 5, 100) == Estimate(0, 0)
