"""What rows cost, worked out by hand and by counting."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from batchpaged.planning.cost import DECODE_WEIGHT, CostModel, ModelCost, cost_model, expected_decode_tokens

MODEL = ModelCost(flops_per_prefill_token=10.0, flops_per_decode_token=15.0, kv_bytes_per_token=4, flops_per_context_token=0.5)


def cost(model: CostModel, num_tokens: int, num_shared: int) -> float:
    return float(model.costs(np.array([num_tokens]), np.array([num_shared]))[0])


def test_the_model_s_constants_are_taken_in_prefilled_tokens() -> None:
    model = cost_model(MODEL, 4, True)
    assert (model.decode, model.attention) == (1.5, 0.05)
    assert cost_model(None, 4, True) == CostModel(4, True, DECODE_WEIGHT, 0.0)


@given(st.integers(1, 50), st.integers(0, 49), st.integers(0, 20))
def test_a_row_costs_what_its_tokens_cost_one_by_one(num_tokens: int, num_shared: int, num_decode: int) -> None:
    num_shared = min(num_shared, num_tokens - 1)
    prefill = sum(1 + 0.05 * position for position in range(num_shared + 1, num_tokens + 1))
    decode = sum(1.5 + 0.05 * (num_tokens + i) for i in range(1, num_decode + 1))
    assert cost(cost_model(MODEL, num_decode, True), num_tokens, num_shared) == pytest.approx(prefill + decode)


def test_a_duplicate_costs_nothing_where_it_is_computed_once_and_a_completion_elsewhere() -> None:
    assert cost(cost_model(MODEL, 4, True), 30, 30) == 0
    assert cost(cost_model(MODEL, 4, False), 30, 30) == cost(cost_model(MODEL, 4, False), 30, 29)


def test_prefilled_at_best() -> None:
    num_tokens, num_shared = np.array([5, 5, 7, 0, 0]), np.array([0, 5, 5, 0, 0])
    assert CostModel(1, True).num_prefilled(num_tokens, num_shared).tolist() == [5, 0, 2, 0, 0]
    assert CostModel(1, False).num_prefilled(num_tokens, num_shared).tolist() == [5, 1, 2, 0, 0]


def test_completions_are_guessed_at_half_their_limit_unless_they_are_forced() -> None:
    assert (expected_decode_tokens(64, True), expected_decode_tokens(64, False)) == (64, 32)
