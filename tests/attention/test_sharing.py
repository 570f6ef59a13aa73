"""The rule for sharing runs, and how its costs are found."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from batchpaged.attention import sharing
from batchpaged.attention.layer_shape import LayerShape
from batchpaged.attention.plan import plan_attention
from batchpaged.attention.reference import TorchAttention
from batchpaged.attention.sharing import ALWAYS, NEVER, SharingRule, estimate_sharing, measure_sharing

RULE = SharingRule(key=2.0, pair=0.5, query=3.0, run=10.0)
SHAPE = LayerShape(2, 16, 16)


def test_keys_cost_each_sequence_that_reads_them_alone() -> None:
    assert RULE.alone(num_queries=4, num_keys=100) == 100 * (2 + 4 * 0.5)


def test_keys_read_together_cost_once() -> None:
    assert RULE.together(num_queries=4, num_keys=100) == 10 + 4 * 3 + 100 * (2 + 4 * 0.5)


@given(st.integers(2, 50), st.integers(1, 1000))
def test_always_and_never(num_sequences: int, num_keys: int) -> None:
    for rule, is_shared in ((ALWAYS, True), (NEVER, False)):
        alone = num_sequences * rule.alone(1, num_keys)
        assert (rule.together(num_sequences, num_keys) < alone) is is_shared


@given(st.lists(st.floats(1e-3, 1e3), min_size=4, max_size=4))
def test_costs_are_recovered_from_times(costs: list[float]) -> None:
    rng = np.random.default_rng(0)
    terms = rng.uniform(1, 2, (10, 4)) * np.eye(10, 4) * 5 + rng.uniform(0, 1, (10, 4))
    np.testing.assert_allclose(sharing._fit(terms, terms @ np.array(costs)), costs, rtol=1e-6)


def test_a_cost_that_would_be_negative_is_left_out() -> None:
    terms = np.array([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]])
    first, second = sharing._fit(terms, np.array([3.0, 2.0, 1.0]))
    assert first > 0 and second == 0


@given(st.lists(st.floats(1e-9, 1.0), min_size=10, max_size=10))
def test_noise_gives_costs_that_are_no_less_than_zero(seconds: list[float]) -> None:
    terms = np.random.default_rng(1).uniform(0, 1000, (10, 4))
    assert all(math.isfinite(cost) and cost >= 0 for cost in sharing._fit(terms, np.array(seconds)))


def test_measured_costs_are_those_of_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that goes on by what the rule says a step costs."""
    costs = SharingRule(key=2e-6, pair=1e-7, query=3e-6, run=5e-5)
    clock = [0.0]

    class Clocked:
        def __init__(self, num_blocks: int, rule: SharingRule) -> None:
            self.rule = rule

        def begin(self, plan) -> None:
            items = plan_attention(plan.sequences, 32, self.rule)
            shared = [(len(item.query_indices), len(item.blocks) * 32) for item in items if item.level]
            own = [len(item.blocks) * 32 for item in items if not item.level]
            self.seconds = sum(costs.together(*run) for run in shared) + sum(costs.alone(1, keys) for keys in own)

        def attend(self, *arguments) -> None:
            clock[0] += self.seconds

    monkeypatch.setattr(sharing.time, "perf_counter", lambda: clock[0])
    found = measure_sharing(Clocked, SHAPE, 4, 32, torch.float32, "cpu")
    np.testing.assert_allclose(
        [found.key, found.pair, found.query, found.run], [costs.key, costs.pair, costs.query, costs.run], rtol=1e-5
    )


@pytest.mark.parametrize("block_size", [8, 128])
def test_a_real_backend_s_costs_are_finite_and_not_negative(block_size: int) -> None:
    def make(num_blocks: int, rule: SharingRule) -> TorchAttention:
        return TorchAttention((SHAPE,), num_blocks, block_size, torch.float32, rule=rule)

    found = measure_sharing(make, SHAPE, 4, block_size, torch.float32, "cpu")
    costs = (found.key, found.pair, found.query, found.run)
    assert all(math.isfinite(cost) and cost >= 0 for cost in costs) and any(costs)


def test_on_a_gpu_sharing_pays_where_many_read_much() -> None:
    """8 K/V heads with 4 query heads each: a group of 4 shares 256 keys, a pair does not share a block of 16."""
    rule = estimate_sharing(LayerShape(8, 128, 128), num_heads=32)
    assert rule.query == 2 * 4 * 128 * 4 / (2 * 128 * 2)
    for num_sequences, num_keys, is_shared in ((4, 256, True), (2, 128, True), (64, 16, True), (2, 16, False), (3, 32, False)):
        alone = num_sequences * rule.alone(1, num_keys)
        assert (rule.together(num_sequences, num_keys) < alone) is is_shared, (num_sequences, num_keys)
