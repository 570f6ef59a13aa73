"""The prefix cache against brute force: a dictionary of every cached block's whole prefix."""

from dataclasses import dataclass, field

import pytest
from engine.harness import narrow_hash
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from batchpaged.engine.block_pool import BlockPool
from batchpaged.engine.prefix_cache import PrefixCache

TOKEN = st.integers(0, 2)
PROMPT = st.lists(TOKEN, min_size=1, max_size=14)


@dataclass(eq=False)
class Holder:
    """What a sequence is to the cache: tokens, the blocks they lie in, and how many of those the cache knows."""

    tokens: list[int]
    table: list[int] = field(default_factory=list)
    num_cached: int = 0
    is_private: bool = False


class CacheMachine(RuleBasedStateMachine):
    """Uses the cache as the scheduler does: match, acquire, allocate, insert in order, release the last block first."""

    @initialize(size=st.integers(1, 4), num_blocks=st.integers(8, 20), num_bits=st.sampled_from([0, 2, 128]))
    def make(self, size: int, num_blocks: int, num_bits: int) -> None:
        self.size = size
        self.pool = BlockPool(num_blocks, size)
        self.cache = PrefixCache(self.pool, b"root", narrow_hash(num_bits))
        self.prefixes: dict[int, tuple[int, ...]] = {}  # by cached block: all tokens from the root to its last one
        self.holders: list[Holder] = []
        forget = self.pool.on_evict
        self.pool.on_evict = lambda block: (forget(block), self.prefixes.pop(block))

    @rule(prompt=PROMPT)
    def start(self, prompt: list[int]) -> None:
        match = self.cache.match(prompt)
        num_new = -(-len(prompt) // self.size) - len(match.blocks)
        num_revived = sum(not self.pool.is_referenced(block) for block in match.blocks)
        if num_new + num_revived > self.pool.num_available:
            return
        for block in match.blocks:
            self.pool.acquire(block)
        table = [*match.blocks, *(self.pool.allocate() for _ in range(num_new))]
        holder = Holder(prompt, table, len(match.blocks))
        self.holders.append(holder)
        self._insert_full(holder)
        self._insert_open(holder)

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), tokens=st.lists(TOKEN, min_size=1, max_size=5))
    def grow(self, data: st.DataObject, tokens: list[int]) -> None:
        holder = data.draw(st.sampled_from(self.holders))
        num_new = -(-(len(holder.tokens) + len(tokens)) // self.size) - len(holder.table)
        if num_new <= self.pool.num_available:
            holder.table += [self.pool.allocate() for _ in range(num_new)]
            holder.tokens = holder.tokens + tokens
            self._insert_full(holder)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        holder = data.draw(st.sampled_from(self.holders))
        self.holders.remove(holder)
        self.pool.release(reversed(holder.table))

    def _insert_full(self, holder: Holder) -> None:
        while not holder.is_private and (holder.num_cached + 1) * self.size <= len(holder.tokens):
            self._insert_next(holder, (holder.num_cached + 1) * self.size)

    def _insert_next(self, holder: Holder, end: int) -> None:
        index = holder.num_cached
        block, parent = holder.table[index], holder.table[index - 1] if index else None
        stands = self.cache.insert(block, parent, tuple(holder.tokens[index * self.size : end]))
        if stands is None:
            holder.is_private = True
            self.prefixes.pop(block, None)
            return
        if stands != block:
            assert self.prefixes[stands] == tuple(holder.tokens[:end]), "exchanged for a block with other content"
            self.prefixes.pop(block, None)
            self.pool.acquire(stands)
            self.pool.release([block])
            holder.table[index] = stands
        self.prefixes[stands] = tuple(holder.tokens[:end])
        holder.num_cached += 1

    def _insert_open(self, holder: Holder) -> None:
        end = len(holder.tokens)
        if not holder.is_private and end % self.size:
            self._insert_next(holder, end)
            holder.num_cached -= 1  # an open block is not settled: it is inserted again once it is full

    @rule(prompt=PROMPT)
    def match(self, prompt: list[int]) -> None:
        """Exactly the longest cached prefix, token by token, short of the last one; never more."""
        match = self.cache.match(prompt)
        needed = prompt[:-1]
        assert match.num_tokens == max((_num_common(needed, p) for p in self.prefixes.values()), default=0)
        assert match.num_tokens == len(match.blocks) * self.size + match.num_copied_slots
        for i, block in enumerate(match.blocks):
            assert self.prefixes[block] == tuple(prompt[: (i + 1) * self.size])
        assert (match.copy_source is None) == (match.num_copied_slots == 0)
        if match.copy_source is not None:
            source = self.prefixes[match.copy_source]
            assert len(source) > len(match.blocks) * self.size
            assert source[: match.num_tokens] == tuple(needed[: match.num_tokens])

    @invariant()
    def knows_the_blocks_that_are_cached_and_no_other(self) -> None:
        assert len(self.cache) == len(self.prefixes)
        assert {block for block in range(self.pool.num_blocks) if self.pool.is_cached(block)} == set(self.prefixes)

    @invariant()
    def children_never_outlive_their_parents(self) -> None:
        full = {p for p in self.prefixes.values() if len(p) % self.size == 0}
        for prefix in self.prefixes.values():
            parent = prefix[: (len(prefix) - 1) // self.size * self.size]
            assert not parent or parent in full

    @invariant()
    def passes_its_own_check(self) -> None:
        self.pool.check(holder.table for holder in self.holders)
        self.cache.check()

    @invariant()
    def keeps_nothing_of_what_it_forgot(self) -> None:
        assert sum(map(len, self.cache._children.values())) == len(self.prefixes)
        assert len(self.cache._by_hash) == sum(len(p) % self.size == 0 for p in self.prefixes.values())


def _num_common(a: list[int], b: tuple[int, ...]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


CacheMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=30)
TestCache = CacheMachine.TestCase


def test_check_notices_a_child_without_its_parent() -> None:
    pool = BlockPool(4, block_size=2)
    cache = PrefixCache(pool, b"")
    parent = cache.insert(pool.allocate(), None, (1, 2))
    cache.insert(pool.allocate(), parent, (3, 4))
    cache.check()
    cache.forget(parent)
    with pytest.raises(AssertionError, match="outlived"):
        cache.check()


def test_check_notices_a_block_that_the_pool_does_not_know_as_cached() -> None:
    pool = BlockPool(4, block_size=2)
    cache = PrefixCache(pool, b"")
    pool.unmark_cached(cache.insert(pool.allocate(), None, (1, 2)))
    with pytest.raises(AssertionError, match="cannot be found"):
        cache.check()
