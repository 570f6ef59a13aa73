"""When it pays to attend to a shared run of blocks together: a cost rule, measured on the machine at start."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from batchpaged.attention.backend import AttentionBackend, AttentionParams
from batchpaged.attention.layer_shape import LayerShape
from batchpaged.engine.step import SequenceStep, StepPlan


@dataclass(frozen=True)
class SharingRule:
    """Costs of one layer's attention, in any unit of time.

    Queries that attend to a run of keys one by one cost `own_pair` for each query and key. Together, as one matrix
    product, they cost `shared_pair` for each, and what it takes to start the product and to merge its result.
    """

    own_pair: float  # one query, one key
    shared_pair: float
    shared_query: float  # its partial result has to be merged
    shared_run: float  # whatever its size

    def together(self, num_queries: int, num_keys: int) -> float:
        """Cost of a run of keys of its own for these queries."""
        return self.shared_run + num_queries * (self.shared_query + num_keys * self.shared_pair)

    def is_product(self, num_queries: int, num_keys: int) -> bool:
        """Whether one sequence's own queries are worth a matrix product: those of a prompt, not the one of a decode."""
        return num_queries > 1 and self.together(num_queries, num_keys) < num_queries * num_keys * self.own_pair

    def alone(self, num_queries: int, num_keys: int) -> float:
        """What these keys add to the cost of one sequence's own work."""
        pair = self.shared_pair if self.is_product(num_queries, num_keys) else self.own_pair
        return num_queries * num_keys * pair


ALWAYS = SharingRule(own_pair=1.0, shared_pair=0.0, shared_query=0.0, shared_run=-1.0)  # sharing is a gain in itself
NEVER = SharingRule(own_pair=0.0, shared_pair=1.0, shared_query=0.0, shared_run=0.0)

# (groups, sequences in each, blocks of their common prefix): enough to tell the four costs apart.
_STEPS = ((1, 32, 8), (1, 8, 64), (8, 4, 8), (8, 8, 32), (16, 2, 16))
_BLOCK_SIZE = 16
_NUM_TRIALS = 4
# Shares every prefix of these steps, and leaves their last block to each query.
_SHARING = SharingRule(own_pair=1.0, shared_pair=0.0, shared_query=0.0, shared_run=2.0 * _BLOCK_SIZE)

MakeBackend = Callable[[int, int, SharingRule], AttentionBackend]  # (number of blocks, block size, rule), one layer


def measure_sharing(make: MakeBackend, shape: LayerShape, num_heads: int, dtype: torch.dtype, device: str) -> SharingRule:
    """Time decode steps of one layer with and without sharing, and fit the costs to them. Takes some tenths of a second."""

    def extra(step: tuple[int, int, int], rule: SharingRule) -> float:
        """Seconds that the prefixes of a step take: beyond those of the same step without prefixes."""
        with_prefix, without = (_seconds(make, rule, s, shape, num_heads, dtype, device) for s in (step, (*step[:2], 0)))
        return max(with_prefix - without, 1e-9)

    own_pair = float(np.median([extra(step, NEVER) / _num_pairs(step) for step in _STEPS]))
    terms = np.array([[step[0], step[0] * step[1], _num_pairs(step)] for step in _STEPS], dtype=float)
    run, query, pair = _fit(terms, np.array([extra(step, _SHARING) for step in _STEPS]))
    return SharingRule(own_pair, pair, query, run)


def _num_pairs(step: tuple[int, int, int]) -> int:
    groups, members, blocks = step
    return groups * members * blocks * _BLOCK_SIZE


def _fit(terms: np.ndarray, seconds: np.ndarray) -> tuple[float, ...]:
    """Least squares of the relative error, without negative costs: a term that would get one is left out."""
    kept = list(range(terms.shape[1]))
    while kept:
        scaled = terms[:, kept] / np.maximum(seconds, 1e-9)[:, None]
        costs = np.linalg.lstsq(scaled, np.ones(len(seconds)), rcond=None)[0]
        if (costs >= 0).all():
            break
        kept.pop(int(costs.argmin()))
    return tuple(float(costs[kept.index(i)]) if i in kept else 0.0 for i in range(terms.shape[1]))


def _seconds(
    make: MakeBackend,
    rule: SharingRule,
    step: tuple[int, int, int],
    shape: LayerShape,
    num_heads: int,
    dtype: torch.dtype,
    device: str,
) -> float:
    """The best time of one layer's attention in a decode step, once for all layers' preparation."""
    plan, num_blocks = _decode_step(*step)
    backend = make(num_blocks, _BLOCK_SIZE, rule)
    query = torch.randn(num_heads, plan.num_tokens, shape.head_dim, dtype=dtype, device=device)
    key = torch.randn(shape.num_kv_heads, plan.num_tokens, shape.head_dim, dtype=dtype, device=device)
    value = torch.randn(shape.num_kv_heads, plan.num_tokens, shape.value_dim, dtype=dtype, device=device)
    params = AttentionParams(shape.head_dim**-0.5, None, None, None)
    backend.begin(plan)
    best = float("inf")
    for _ in range(_NUM_TRIALS + 1):  # the first may have to compile
        _wait(device)
        started = time.perf_counter()
        backend.attend(0, query, key, value, params)
        _wait(device)
        best = min(best, time.perf_counter() - started)
    return best


def _wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize(device)


def _decode_step(num_groups: int, num_members: int, num_prefix_blocks: int) -> tuple[StepPlan, int]:
    """-> (groups of sequences with a common prefix and one block of their own, number of blocks)"""
    sequences, slots, next_block = [], [], 0
    for _ in range(num_groups):
        prefix = tuple(range(next_block, next_block + num_prefix_blocks))
        next_block += num_prefix_blocks
        for _ in range(num_members):
            length = num_prefix_blocks * _BLOCK_SIZE + 1
            sequences.append(SequenceStep(len(sequences), 1, length, (*prefix, next_block), None))
            slots.append(next_block * _BLOCK_SIZE)
            next_block += 1
    zeros = (0,) * len(sequences)
    return StepPlan(zeros, zeros, tuple(slots), tuple(sequences), ()), next_block
