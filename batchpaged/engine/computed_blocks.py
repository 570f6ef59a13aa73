"""Blocks become findable as steps fill them."""

from batchpaged.engine.block_pool import BlockPool
from batchpaged.engine.prefix_cache import Parent, PrefixCache
from batchpaged.engine.sequence import Sequence


class ComputedBlocks:
    """Enters what running sequences have computed into the prefix cache."""

    def __init__(self, pool: BlockPool, cache: PrefixCache) -> None:
        self._pool = pool
        self._cache = cache

    def enter_full(self, sequence: Sequence) -> None:
        """All blocks that are full, and whose tokens are known. Exchanges blocks in the table for equal ones."""
        num_tokens = min(sequence.num_computed_tokens, len(sequence.token_ids))
        while not sequence.is_private and (sequence.num_cached_blocks + 1) * self._pool.block_size <= num_tokens:
            self._enter_next(sequence)

    def enter_prompt_end(self, sequence: Sequence) -> None:
        """The prompt's last block, if it is not full, once the prompt is computed: others may copy from it."""
        num_tokens = sequence.num_computed_tokens
        is_prompt_done = num_tokens == sequence.num_prompt_tokens
        if is_prompt_done and not sequence.is_private and num_tokens % self._pool.block_size:
            self._cache.insert(*self._content(sequence, num_tokens))

    def _enter_next(self, sequence: Sequence) -> None:
        """Cache the first block that is full and not cached yet, or exchange it for the equal block that is cached."""
        index = sequence.num_cached_blocks
        content = self._content(sequence, (index + 1) * self._pool.block_size)
        known_hash = sequence.block_hashes[index] if index < len(sequence.block_hashes) else None
        block, canonical = content[0], self._cache.insert(*content, known_hash)
        if canonical is None:
            sequence.is_private = True
            return
        if canonical != block:
            self._pool.acquire(canonical)
            self._pool.release([block])
            sequence.block_table[index] = canonical
        sequence.num_cached_blocks += 1

    def _content(self, sequence: Sequence, end: int) -> tuple[int, Parent, tuple[int, ...]]:
        """(block, parent block, tokens) of the first block that is not cached, filled up to token `end`."""
        index = sequence.num_cached_blocks
        parent = sequence.block_table[index - 1] if index else sequence.root
        return sequence.block_table[index], parent, tuple(sequence.token_ids[index * self._pool.block_size : end])
