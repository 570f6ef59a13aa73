"""The block pool against a model of it: counts, the order in which blocks were let go, and their next uses."""

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from batchpaged.engine.block_pool import BlockPool
from batchpaged.engine.free_queue import FreeQueue


class PoolMachine(RuleBasedStateMachine):
    @initialize(num_blocks=st.integers(1, 8))
    def make(self, num_blocks: int) -> None:
        self.pool = BlockPool(num_blocks, block_size=4)
        self.pool.on_evict = lambda block: self.evicted.append(block)
        self.evicted: list[int] = []
        self.counts = dict.fromkeys(range(num_blocks), 0)
        self.cached: set[int] = set()
        self.queue: list[int] = []  # cached and unreferenced, the one that got its place first in front
        self.uses: dict[int, int] = {}  # next uses that are known
        self.pool.next_use = self.uses.get

    @property
    def referenced(self) -> list[int]:
        return [block for block, count in self.counts.items() if count]

    @property
    def eviction_order(self) -> list[int]:
        """Without a known use first, then the farthest; sorting keeps the order among equals."""
        return sorted(self.queue, key=lambda block: -self.uses.get(block, 10**9))

    @property
    def free(self) -> set[int]:
        return set(self.counts) - set(self.referenced) - set(self.queue)

    @rule()
    def allocate(self) -> None:
        if not self.free and not self.queue:
            assert self.pool.num_available == 0
            return
        free, expected = self.free, self.eviction_order[:1]
        self.evicted.clear()
        block = self.pool.allocate()
        if free:
            assert block in free and self.evicted == [], "a cached block is evicted while a free one is there"
        else:
            assert [block] == expected == self.evicted, "not the block whose turn it is"
            self.queue.remove(block)
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

    @precondition(lambda self: self.cached)
    @rule(data=st.data(), use=st.none() | st.integers(0, 4))
    def change_use(self, data: st.DataObject, use: int | None) -> None:
        block = data.draw(st.sampled_from(sorted(self.cached)))
        self.uses.pop(block, None)
        self.uses |= {} if use is None else {block: use}
        self.pool.reconsider(block)
        if block in self.queue:
            self.queue.remove(block)
            self.queue.append(block)

    @invariant()
    def agrees_with_the_model(self) -> None:
        blocks = range(self.pool.num_blocks)
        assert self.pool.reference_counts == [self.counts[block] for block in blocks]
        assert [self.pool.is_referenced(block) for block in blocks] == [self.counts[block] > 0 for block in blocks]
        assert [self.pool.is_cached(block) for block in blocks] == [block in self.cached for block in blocks]
        assert self.pool.num_available == len(self.free) + len(self.queue)
        assert self.pool.num_referenced == len(self.referenced)
        assert self.pool.eviction_order() == self.eviction_order
        spare = [block for block in blocks if self.pool.is_spare(block)]
        assert spare == [block for block in blocks if block in self.queue and block not in self.uses]
        assert self.pool.num_spare == len(self.free) + len(spare)

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


def test_the_free_queue_forgets_what_was_taken_out_of_it() -> None:
    queue = FreeQueue()
    for use in range(10_000):
        queue.add(0, use)
        queue.add(1, use)
        queue.remove(0)
        queue.remove(1)
    queue.add(2, 5)
    assert (queue.first(), len(queue)) == (2, 1)
    assert len(queue._heap) < 100


@pytest.mark.parametrize("damage", ["count", "lost", "twice", "cached", "use"])
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
        case "use":
            pool.next_use = lambda block: 1
    with pytest.raises(AssertionError):
        pool.check([[held]])
