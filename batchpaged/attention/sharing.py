"""When it pays to attend to a shared run of blocks together: a cost rule, measured on the machine at start, or estimated."""

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

    A key costs `key` for each sequence that reads it by itself, or once for all that read it together; `pair` for each
    query that it is multiplied with. To read a run together costs `run`, and `query` for each query, whose partial
    result has to be merged.
    """

    key: float
    pair: float
    query: float
    run: float

    def alone(self, num_queries: int, num_keys: int) -> float:
        """What these keys add to the cost of one sequence's own work."""
        return num_keys * (self.key + num_queries * self.pair)

    def together(self, num_queries: int, num_keys: int) -> float:
        """Cost of a run of keys of its own for all these queries."""
        return self.run + num_queries * self.query + num_keys * (self.key + num_queries * self.pair)


ALWAYS = SharingRule(key=1.0, pair=0.0, query=0.0, run=0.0)
NEVER = SharingRule(key=0.0, pair=0.0, query=0.0, run=1.0)

def estimate_sharing(layer: LayerShape, num_heads: int) -> SharingRule:
    """For a GPU, by the numbers moved to and from its memory, in units of one key and its value: 16 bits each.

    Timing single layers would tell how long Python takes to start them. A query's partial result is written and read in
    float32, for each of its heads. A product costs a hundredth of what its key costs to read, whatever the size of a head; a
    run of its own, about as much as 64 keys: a program that starts has to ask for blocks and queries before it can read keys.
    """
    repeats = num_heads // layer.num_kv_heads
    partial = 2 * repeats * layer.value_dim * 4 / ((layer.head_dim + layer.value_dim) * 2)
    return SharingRule(key=1.0, pair=0.01 * repeats, query=partial, run=64.0)


# (groups, sequences in each, tokens of their common prefix): enough to tell the four costs apart.
_STEPS = ((1, 32, 128), (1, 8, 1024), (8, 4, 128), (8, 8, 512), (16, 2, 256))
_NUM_TRIALS = 4
MakeBackend = Callable[[int, SharingRule], AttentionBackend]  # (number of blocks, rule), one layer
_Step = tuple[int, int, int]


def measure_sharing(
    make: MakeBackend, shape: LayerShape, num_heads: int, block_size: int, dtype: torch.dtype, device: str
) -> SharingRule:
    """Time decode steps of one layer with and without sharing, and fit the costs to them. Takes some tenths of a second."""

    def seconds(step: _Step, rule: SharingRule) -> float:
        plan, num_blocks = _decode_step(*step, block_size)
        return _seconds(make(num_blocks, rule), plan, shape, num_heads, dtype, device)

    def extra(step: _Step, rule: SharingRule) -> float:
        """Seconds that the prefixes of a step take: beyond those of the same step without prefixes."""
        return max(seconds(step, rule) - seconds((*step[:2], 0), rule), 1e-9)

    alone = [([pairs, pairs, 0, 0], extra(step, NEVER)) for step in _STEPS for pairs in [_num_pairs(step)]]
    together = [
        ([groups * length, _num_pairs(step), groups * members, groups], extra(step, ALWAYS))
        for step in _STEPS
        for groups, members, length in [step]
    ]
    terms, seconds = zip(*alone, *together, strict=True)
    return SharingRule(*_fit(np.array(terms, dtype=float), np.array(seconds)))


def _num_pairs(step: _Step) -> int:
    groups, members, length = step
    return groups * members * length


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
    backend: AttentionBackend, plan: StepPlan, shape: LayerShape, num_heads: int, dtype: torch.dtype, device: str
) -> float:
    """The best time of one layer's attention in a step, without the preparation that all layers share."""
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


def _decode_step(num_groups: int, num_members: int, length: int, block_size: int) -> tuple[StepPlan, int]:
    """-> (groups of sequences with `length` tokens in common and one block of their own, number of blocks)

    `length` is a whole number of blocks.
    """
    sequences, slots, next_block = [], [], 0
    for _ in range(num_groups):
        prefix = tuple(range(next_block, next_block + length // block_size))
        next_block += len(prefix)
        for _ in range(num_members):
            sequences.append(SequenceStep(len(sequences), 1, length + 1, (*prefix, next_block), None))
            slots.append(next_block * block_size)
            next_block += 1
    zeros = (0,) * len(sequences)
    return StepPlan(zeros, zeros, tuple(slots), tuple(sequences), ()), next_block
