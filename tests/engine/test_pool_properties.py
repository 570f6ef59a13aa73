"""The block pool against a model of it: a count for every block, and the order in which blocks were let go."""

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from batchpaged.engine.block_pool import BlockPool


class PoolMachine(RuleBasedStateMachine):
    @initialize(num_blocks=st.integers(1, 8))
    def make(self, num_blocks: int) -> None:
        self.pool = BlockPool(num_blocks, block_size=4)
        self.pool.on_evict = lambda block: self.evicted.append(block)
        self.evicted: list[int] = []
        self.counts = dict.fromkeys(range(num_blocks), 0)
        self.cached: set[int] = set()
        self.queue: list[int] = []  # cached and unreferenced, the one to be evicted first in front

    @property
    def referenced(self) -> list[int]:
        return [block for block, count in self.counts.items() if count]

    @property
    def free(self) -> set[int]:
        return set(self.counts) - set(self.referenced) - set(self.queue)

    @rule()
    def allocate(self) -> None:
        if not self.free and not self.queue:
            assert self.pool.num_available == 0
            return
        free, expected = self.free, self.queue[:1]
        self.evicted.clear()
        block = self.pool.allocate()
        if free:
            assert block in free and self.evicted == [], "a cached block is evicted while a free one is there"
        else:
            assert [block] == expected == self.evicted, "not the block that was let go first"
            self.queue.pop(0)
            self.cached.discard(block)
        self.counts[block] = 1

    @precondition(lambda self: self.referenced or self.queue)
    @rule(data=st.data())
    def acquire(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(self.referenced + self.queue))
        self.pool.acquire(block)
        if block in self.queue:
            self.queue.remove(block)
        self.counts[block] += 1

    @precondition(lambda self: self.referenced)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        blocks = data.draw(st.lists(st.sampled_from(self.referenced), unique=True, min_size=1))
        self.pool.release(blocks)
        for block in blocks:
            self.counts[block] -= 1
            if self.counts[block] == 0 and block in self.cached:
                self.queue.append(block)

    @precondition(lambda self: self.referenced)
    @rule(data=st.data(), is_cached=st.booleans())
    def mark(self, data: st.DataObject, is_cached: bool) -> None:
        block = data.draw(st.sampled_from(self.referenced))
        (self.pool.mark_cached if is_cached else self.pool.unmark_cached)(block)
        (self.cached.add if is_cached else self.cached.discard)(block)

    @invariant()
    def agrees_with_the_model(self) -> None:
        blocks = range(self.pool.num_blocks)
        assert self.pool.reference_counts == [self.counts[block] for block in blocks]
        assert [self.pool.is_referenced(block) for block in blocks] == [self.counts[block] > 0 for block in blocks]
        assert [self.pool.is_cached(block) for block in blocks] == [block in self.cached for block in blocks]
        assert self.pool.num_available == len(self.free) + len(self.queue)
        assert self.pool.num_referenced == len(self.referenced)

    @invariant()
    def passes_its_own_check(self) -> None:
        self.pool.check([block] for block, count in self.counts.items() for _ in range(count))


PoolMachine.TestCase.settings = settings(max_examples=120, stateful_step_count=40)
TestPool = PoolMachine.TestCase


def test_blocks_that_were_given_back_are_used_again_first() -> None:
    pool = BlockPool(10, block_size=4)
    first = [pool.allocate() for _ in range(3)]
    pool.release(first)
    assert {pool.allocate() for _ in range(3)} == set(first)


@pytest.mark.parametrize("damage", ["count", "lost", "twice", "cached"])
def test_check_notices_damage(damage: str) -> None:
    pool = BlockPool(4, block_size=4)
    held, let_go = pool.allocate(), pool.allocate()
    pool.mark_cached(let_go)
    pool.release([let_go])
    pool.check([[held]])
    match damage:
        case "count":
            pool.reference_counts[held] += 1
        case "lost":
            pool._free.pop()
        case "twice":
            pool._free.append(held)
        case "cached":
            pool.mark_cached(pool._free[0])
    with pytest.raises(AssertionError):
        pool.check([[held]])
