"""The attention kernel against softmax by its definition, over odd sizes; sizes are few, for each is compiled."""

import os
import subprocess
import sys
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchpaged.kernels.cpu.attention import attend_runs

# (query heads per head, head_dim, value_dim, block_size): widths of 1, 2, 8 and 16 values, with and without remainders.
SIZES = [(1, 24, 40, 8), (3, 72, 80, 16), (8, 5, 7, 4), (2, 96, 112, 32), (4, 128, 256, 64), (5, 8, 6, 128)]
GUARD = np.float32(123.0)


@dataclass(frozen=True)
class Run:
    """Query i of the step, the (first, end) of the keys that it sees, for each query of the run."""

    blocks: list[int]
    queries: dict[int, tuple[int, int]]


@dataclass
class Problem:
    """Random queries, keys and values; results in the middle of an array whose ends nobody may write to."""

    sizes: tuple[int, int, int, int]
    num_groups: int = 2
    num_tokens: int = 6
    num_blocks: int = 9
    seed: int = 0
    scale: float = 1.0
    seen: dict[int, list[tuple[int, int]]] = field(default_factory=dict)  # by query: slots (block, offset) so far

    def __post_init__(self) -> None:
        repeats, head_dim, value_dim, block_size = self.sizes
        rng = np.random.default_rng(self.seed)
        random = lambda *shape: rng.standard_normal(shape, dtype=np.float32) * np.float32(self.scale)  # noqa: E731
        num_heads = self.num_groups * repeats
        self.query = random(self.num_tokens, num_heads, head_dim)
        self.keys = random(self.num_groups, self.num_blocks, head_dim, block_size)
        self.values = random(self.num_groups, self.num_blocks, block_size, value_dim)
        self.guarded = np.full((self.num_tokens + 2, num_heads, value_dim), GUARD, np.float32)
        self.guarded_lse = np.full((self.num_tokens + 2, num_heads), GUARD, np.float32)
        self.output, self.lse = self.guarded[1:-1], self.guarded_lse[1:-1]
        self.output[:], self.lse[:] = 0, -np.inf

    def attend(self, runs: list[Run], softcap: float = 0.0) -> None:
        counts = [len(run.queries) for run in runs]
        lengths = [len(run.blocks) for run in runs]
        seen = [pair for run in runs for pair in run.queries.values()]
        tasks = np.random.default_rng(1).permutation(len(runs) * self.num_groups)
        attend_runs(*self.sizes)(
            self.query,
            self.keys,
            self.values,
            _int64(block for run in runs for block in run.blocks),
            np.cumsum(lengths) - np.array(lengths, dtype=np.int64),
            np.concatenate([_int64([0]), np.cumsum(counts)]),
            _int64(query for run in runs for query in run.queries),
            _int64(first for first, _ in seen),
            _int64(end for _, end in seen),
            tasks,
            _int64([0, len(tasks) // 3, len(tasks)]),
            np.float32(self.scaling),
            np.float32(softcap),
            self.output,
            self.lse,
        )
        for run in runs:
            for query, (first, end) in run.queries.items():
                slots = [(run.blocks[key // self.sizes[3]], key % self.sizes[3]) for key in range(first, end)]
                self.seen.setdefault(query, []).extend(slots)

    @property
    def scaling(self) -> float:
        return self.sizes[1] ** -0.5

    def check(self, softcap: float = 0.0, atol: float = 1e-5) -> None:
        """Everything seen so far, as one softmax in float64."""
        for query, slots in self.seen.items():
            blocks, offsets = zip(*slots, strict=True)
            for head in range(self.query.shape[1]):
                group = head // self.sizes[0]
                keys = self.keys[group, blocks, :, offsets].astype(np.float64)
                scores = keys @ self.query[query, head] * self.scaling
                scores = softcap * np.tanh(scores / softcap) if softcap else scores
                top = scores.max()
                weights = np.exp(scores - top)
                expected = weights @ self.values[group, blocks, offsets] / weights.sum()
                np.testing.assert_allclose(self.output[query, head], expected, rtol=1e-5, atol=atol)
                np.testing.assert_allclose(self.lse[query, head], top + np.log(weights.sum()), rtol=1e-5, atol=1e-5)
        for query in set(range(self.num_tokens)) - set(self.seen):
            assert not self.output[query].any() and (self.lse[query] == -np.inf).all()
        for guarded in (self.guarded, self.guarded_lse):
            assert (guarded[[0, -1]] == GUARD).all()


def _int64(numbers) -> np.ndarray:
    return np.fromiter(numbers, dtype=np.int64)


@pytest.mark.parametrize("sizes", SIZES)
def test_several_runs_of_odd_sizes(sizes: tuple[int, int, int, int]) -> None:
    """One, two and three blocks; first and last block of the cache; whole and partial; windows that differ."""
    size = sizes[3]
    problem = Problem(sizes)
    problem.attend(
        [
            Run([8], {0: (0, 1)}),
            Run([0, 5, 3], {2: (0, 3 * size), 1: (1, 2 * size + 1), 5: (2 * size, 3 * size)}),
            Run([7, 2], {3: (0, size)}),
        ]
    )
    problem.check()


@pytest.mark.parametrize("sizes", SIZES[:3])
@pytest.mark.parametrize("num_queries", range(1, 7))
def test_any_number_of_queries_in_a_run(num_queries: int, sizes: tuple[int, int, int, int]) -> None:
    """The last tile of rows is seldom a whole one."""
    problem = Problem(sizes, seed=num_queries)
    problem.attend([Run([4, 1], {query: (0, sizes[3] + 1 + query % 3) for query in range(num_queries)})])
    problem.check()


def test_softcap() -> None:
    problem = Problem(SIZES[0], scale=3.0)
    problem.attend([Run([1, 2], {0: (0, 13), 1: (3, 9), 4: (0, 16)})], softcap=2.0)
    problem.check(softcap=2.0)


@pytest.mark.parametrize("num_levels", [2, 3])
@pytest.mark.parametrize("sizes", SIZES[:3])
def test_levels_of_a_trie_are_merged(sizes: tuple[int, int, int, int], num_levels: int) -> None:
    """Own blocks, then documents of two sequences each, then a system prompt of all."""
    size = sizes[3]
    levels = [
        [Run([3 + query], {query: (0, 1 + query % size)}) for query in range(6)],
        [Run([2], {0: (0, size), 1: (0, size)}), Run([0], {2: (0, size), 3: (0, size), 4: (0, size)})],
        [Run([1, 0], {query: (0, 2 * size) for query in (4, 2, 0, 1, 3)})],
    ]
    problem = Problem(sizes)
    for level in levels[:num_levels]:
        problem.attend(level)
        problem.check(atol=1e-5)


@settings(max_examples=60)
@given(st.data())
def test_random_runs_in_random_order(data: st.DataObject) -> None:
    problem = Problem(SIZES[0], seed=data.draw(st.integers(0, 99)), scale=data.draw(st.sampled_from([0.1, 1.0, 4.0])))
    for _ in range(data.draw(st.integers(1, 3))):
        free, runs = data.draw(st.permutations(range(6))), []
        while free and data.draw(st.booleans()):
            blocks = data.draw(st.lists(st.integers(0, 8), min_size=1, max_size=5))
            count = data.draw(st.integers(1, len(free)))
            queries, free = free[:count], free[count:]
            pairs = st.integers(0, len(blocks) * 8 - 1).flatmap(
                lambda first, end=len(blocks) * 8: st.tuples(st.just(first), st.integers(first + 1, end))
            )
            runs.append(Run(blocks, {query: data.draw(pairs) for query in queries}))
        if runs:
            problem.attend(runs)
    problem.check(atol=3e-5)


def test_scores_far_apart_lose_nothing_that_counts() -> None:
    """exp of the least is 0, and of the greatest 1, however far from each other they lie."""
    problem = Problem(SIZES[0], scale=40.0)
    problem.attend([Run([1, 2, 3], {0: (0, 24), 1: (5, 17)})])
    problem.attend([Run([4], {0: (0, 8), 1: (0, 8)})])
    problem.check(atol=1e-2)  # beside values of 40
    assert np.isfinite(problem.output).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
def test_what_overflows_stays_in_its_row(bad: float) -> None:
    problem = Problem(SIZES[1])
    problem.query[2, 1, 3] = bad
    problem.attend([Run([4, 1, 6], {query: (0, 40 + query) for query in range(6)})])
    del problem.seen[2]
    problem.query[2] = 0
    problem.output[2], problem.lse[2] = 0, -np.inf
    problem.check()


def test_blocks_that_nobody_sees_are_not_read() -> None:
    problem = Problem(SIZES[0])
    problem.keys[:, [0, 8]], problem.values[:, [0, 8]] = np.nan, np.nan
    problem.attend([Run([1, 8, 3, 0], {0: (17, 23), 1: (16, 24)}), Run([2, 0], {2: (0, 8), 3: (1, 2)})])
    problem.check()


_ATTEND_ONCE = """
import numpy as np
from batchpaged.kernels.cpu.attention import attend_runs
kernel = attend_runs(1, 3, 3, 2)
x, numbers = lambda *shape: np.zeros(shape, np.float32), lambda *n: np.array(n, np.int64)
runs = (numbers(0), numbers(0), numbers(0, 1), numbers(0), numbers(0), numbers(2), numbers(0), numbers(0, 1))
kernel(x(1, 1, 3), x(1, 1, 3, 2), x(1, 1, 2, 3), *runs, np.float32(1), np.float32(0), x(1, 1, 3), x(1, 1))
print(sum(kernel.stats.cache_hits.values()))
"""


def test_machine_code_is_found_again_by_another_process(tmp_path) -> None:
    """Else every run would compile for seconds, and leave another file behind."""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", _ATTEND_ONCE]
    hits = [subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout for _ in range(2)]
    assert [int(n) for n in hits] == [0, 1]
