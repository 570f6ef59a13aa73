"""The floor of a run's operations, against a count token by token."""

import numpy as np
from hypothesis import given, strategies as st

from batchpaged.planning.cost import ModelCost, floor_flops

COST = ModelCost(flops_per_prefill_token=10.0, flops_per_decode_token=13.0, kv_bytes_per_token=1, flops_per_context_token=0.5)


def counted(num_tokens: int, num_shared: int, num_generated: int) -> float:
    """Of one row: every token that is not shared goes through the layers, attending to itself and all before it."""
    computed = [*range(num_shared, num_tokens), *range(num_tokens, num_tokens + num_generated - 1)]
    return sum(10.0 + 0.5 * (position + 1) for position in computed) + num_generated * 3.0


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 30)), min_size=1, max_size=5), st.integers(1, 6))
def test_each_unshared_token_is_counted_once(rows: list[tuple[int, int]], num_generated: int) -> None:
    rows = [(n, min(shared, n)) for n, shared in rows]
    num_tokens, num_shared = (np.array(column) for column in zip(*rows, strict=True))
    expected = sum(counted(n, shared, num_generated) for n, shared in rows)
    assert abs(floor_flops(num_tokens, num_shared, num_generated, COST) - expected) < 1e-6 * expected
