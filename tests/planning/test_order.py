"""The planned order and what one pass over neighbours tells, against Python's own sort and a trie."""

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from planning.prompts import PROMPT_LISTS, num_common, num_tree_nodes, token_array

from batchpaged.planning.order import plan_order
from batchpaged.planning.summary import num_duplicates, num_prefix_groups, num_unique_tokens


@settings(max_examples=100)
@given(PROMPT_LISTS)
def test_the_order_is_that_of_the_token_ids_and_stable(prompts: list[list[int]]) -> None:
    order = plan_order(token_array(prompts))
    assert order.rows.tolist() == sorted(range(len(prompts)), key=lambda i: prompts[i])  # sorted is stable
    assert len(order) == len(prompts)


@settings(max_examples=100)
@given(PROMPT_LISTS)
def test_shared_tokens_are_those_of_neighbours(prompts: list[list[int]]) -> None:
    order = plan_order(token_array(prompts))
    ordered = [prompts[i] for i in order.rows]
    assert order.num_tokens.tolist() == [len(prompt) for prompt in ordered]
    shared = [num_common(a, b) for a, b in zip(ordered[:-1], ordered[1:], strict=True)]
    assert order.num_shared.tolist() == [0, *shared][: len(prompts)]


@settings(max_examples=100)
@given(PROMPT_LISTS)
def test_unique_tokens_are_the_nodes_of_the_prefix_tree(prompts: list[list[int]]) -> None:
    order = plan_order(token_array(prompts))
    assert num_unique_tokens(order) == num_tree_nodes(prompts)


@settings(max_examples=100)
@given(PROMPT_LISTS)
def test_duplicates_are_prompts_equal_to_an_earlier_one(prompts: list[list[int]]) -> None:
    order = plan_order(token_array(prompts))
    assert num_duplicates(order, pa.nulls(len(order), pa.string())) == len(prompts) - len({tuple(prompt) for prompt in prompts})


def test_no_other_order_shares_more_with_the_prompt_before() -> None:
    rng = random.Random(0)
    prompts = [[rng.randrange(2) for _ in range(rng.randint(1, 8))] for _ in range(40)]
    shared = plan_order(token_array(prompts)).num_shared.sum()
    for _ in range(50):
        rng.shuffle(prompts)
        assert sum(num_common(a, b) for a, b in zip(prompts[:-1], prompts[1:], strict=True)) <= shared


@pytest.mark.parametrize(
    ("prompts", "num_groups"),
    [([], 0), ([[1, 2]], 1), ([[1, 2, 3], [1, 2, 4], [1, 5, 6, 7]], 2), ([[1, 2], [3, 4]], 2), ([[1, 2]] * 5, 1)],
)
def test_prefix_groups(prompts: list[list[int]], num_groups: int) -> None:
    assert num_prefix_groups(plan_order(token_array(prompts))) == num_groups


def test_a_slice_of_an_array_is_ordered_by_its_own_rows() -> None:
    prompts = [[9], [3, 1], [2], [3, 0], [1]]
    order = plan_order(token_array(prompts).slice(1, 3))
    assert order.rows.tolist() == [1, 2, 0]
    assert order.num_shared.tolist() == [0, 0, 1]


def test_rows_and_counts_are_64_bits_wide() -> None:
    order = plan_order(pa.array([], pa.list_(pa.int32())))
    assert {order.rows.dtype, order.num_tokens.dtype, order.num_shared.dtype} == {np.dtype(np.int64)}
    assert len(order) == num_unique_tokens(order) == num_duplicates(order, pa.nulls(0, pa.string())) == 0


def test_prompts_longer_than_what_is_compared_at_once() -> None:
    rng = random.Random(0)
    base = [rng.randrange(5) for _ in range(700)]
    prompts = [[*base[: rng.randrange(700)], rng.randrange(9), *base[: rng.randrange(70)]] for _ in range(2500)]
    order = plan_order(token_array(prompts))
    ordered = [prompts[i] for i in order.rows]
    assert ordered == sorted(prompts)
    assert order.num_shared.tolist() == [0, *(num_common(a, b) for a, b in zip(ordered[:-1], ordered[1:], strict=True))]
