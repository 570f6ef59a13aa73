"""What a unit had to compute, from prompts in planned order and what the engine says of them."""

import pytest
from hypothesis import given, strategies as st

from batchpaged.cluster.fan_out import equal_runs, fanned_out
from batchpaged.cluster.unit_reuse import unit_reuse
from batchpaged.engine.engine import Completion


def completion(num_prompt: int, num_prefilled: int, num_earlier: int = 0) -> Completion:
    return Completion(0, (), num_prompt, num_prompt - num_prefilled, num_prefilled, 0, num_earlier)


def prefixes(prompt: list[int]) -> set[tuple[int, ...]]:
    return {tuple(prompt[:end]) for end in range(1, len(prompt) + 1)}


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=12), st.booleans())
def test_a_unit_that_loses_nothing_computes_its_unique_and_last_tokens(prompts: list[list[int]], is_greedy: bool) -> None:
    """Computed as an endless cache would: what no prompt before had, and the last token."""
    prompts.sort()
    seen: set[tuple[int, ...]] = set()
    computed: list[tuple[list[int], Completion]] = []
    for run in equal_runs(prompts):
        for place in run:
            num_new = len(prefixes(prompts[place]) - seen)
            outcome = completion(len(prompts[place]), max(1, num_new))
            computed.append((prompts[place], fanned_out(outcome) if is_greedy and place > run.start else outcome))
            seen |= prefixes(prompts[place])
    reuse = unit_reuse(computed, None, has_cache=True)
    assert reuse["num_unique_tokens"] == len(seen)
    assert reuse["num_prefilled_tokens"] == reuse["num_unique_tokens"] + reuse["num_last_tokens"]
    num_equal = len(prompts) - len({tuple(prompt) for prompt in prompts})
    assert reuse["num_last_tokens"] == (0 if is_greedy else num_equal)


@pytest.mark.parametrize(("before", "num_shared"), [(None, 0), ([1, 2], 2), ([1, 2, 3], 3), ([2], 0)])
def test_the_first_prompt_shares_with_the_unit_before(before: list[int] | None, num_shared: int) -> None:
    computed = [([1, 2, 3], completion(3, 3)), ([1, 2, 4], completion(3, 1))]
    reuse = unit_reuse(computed, before, has_cache=True)
    assert (reuse["num_shared_tokens"], reuse["num_unique_tokens"]) == (num_shared, 4 - num_shared)


def test_what_an_earlier_stage_computed_spares_the_first_row_that_asks_for_it() -> None:
    """Two of three tokens for the first row; the second shares them with it, and finds a third one."""
    computed = [([1, 2, 3], completion(3, 1, 2)), ([1, 2, 4, 5], completion(4, 1, 3)), ([1, 9], completion(2, 1, 1))]
    reuse = unit_reuse(computed, None, has_cache=True)
    assert (reuse["num_unique_tokens"], reuse["num_spared_tokens"], reuse["num_last_tokens"]) == (6, 3, 0)


def test_rows_that_were_not_computed_count_for_nothing() -> None:
    computed = [([1, 2, 3], "never fits"), ([1, 2, 4], completion(3, 3)), ([9], None)]
    reuse = unit_reuse(computed, None, has_cache=False)
    assert reuse == {
        "has_cache": False,
        "num_prefilled_tokens": 3,
        "num_unique_tokens": 3,
        "num_spared_tokens": 0,
        "num_last_tokens": 0,
        "num_shared_tokens": 0,
    }
