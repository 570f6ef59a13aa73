"""The prefix cache: finds blocks that already hold the keys and values of a prompt's leading tokens.

Full blocks are found by hash, as in vLLM (Kwon et al., 2023, "Efficient Memory Management for Large Language
Model Serving with PagedAttention"): xxh3-128 over the parent's hash and the block's token ids. A hash only leads
to a candidate; a hit counts after token ids and parent block match exactly. Where a prompt leaves all cached
prompts inside a block, the block that shares most of its leading tokens is found as well, to be copied.
"""

from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import xxhash

from batchpaged.engine.block_pool import BlockPool

# What a block follows: a block id; at the start of a prompt the identity of its adapter, or None for the base model.
Parent = int | str | None
BlockHash = Callable[[bytes, bytes], bytes]  # (parent hash, token ids as int32 bytes) -> hash


def xxh3_128(parent: bytes, tokens: bytes) -> bytes:
    return xxhash.xxh3_128_digest(parent + tokens)


@dataclass(frozen=True, slots=True)
class CachedBlock:
    block: int
    parent: Parent
    hash: bytes | None  # None for an open block: its owner still appends to it
    tokens: tuple[int, ...]  # at most block_size


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """What the cache holds of a prompt: whole blocks to share, then slots of one more block to copy."""

    blocks: tuple[int, ...]
    copy_source: int | None
    num_copied_slots: int  # 0 when there is nothing to copy
    num_tokens: int  # covered by both


NO_MATCH = PrefixMatch((), None, 0, 0)


def without_last(match: PrefixMatch, block_size: int) -> PrefixMatch:
    """The same, but the last token covered is computed again, in a block of its own: what the model says after it is wanted.

    All of its slots are copied, for what lies in them beside keys and values.
    """
    if not match.num_tokens:
        return match
    if match.copy_source is not None:
        return replace(match, num_tokens=match.num_tokens - 1)
    return PrefixMatch(match.blocks[:-1], match.blocks[-1], block_size, match.num_tokens - 1)


class PrefixCache:
    """Owns the findability of blocks; the pool owns their lives.

    `root` seeds every hash: it differs per run, model and dtype, and with the identity of an adapter per adapter, so equal
    tokens of different models never meet.
    """

    def __init__(self, pool: BlockPool, root: bytes, block_hash: BlockHash = xxh3_128) -> None:
        self._pool = pool
        self._root = root
        self._block_hash = block_hash
        self._by_hash: dict[bytes, CachedBlock] = {}
        self._by_block: dict[int, CachedBlock] = {}
        # Children of a block by token ids, sorted: the longest common prefix is always with a neighbour.
        self._children: dict[Parent, list[tuple[tuple[int, ...], int]]] = {}
        pool.on_evict = self._forget
        pool.leaf_below = self._leaf_below

    def __len__(self) -> int:
        return len(self._by_block)

    def extend_hashes(
        self, hashes: list[bytes], token_ids: list[int], num_blocks: int, adapter: str | None = None
    ) -> None:
        """Append the hashes of a prompt's leading full blocks until there are `num_blocks` of them."""
        size = self._pool.block_size
        content = np.asarray(token_ids[len(hashes) * size : num_blocks * size], dtype=np.int32).tobytes()
        parent_hash = hashes[-1] if hashes else self._root_of(adapter)
        for start in range(0, len(content), 4 * size):
            parent_hash = self._block_hash(parent_hash, content[start : start + 4 * size])
            hashes.append(parent_hash)

    def _root_of(self, adapter: str | None) -> bytes:
        return self._root if adapter is None else self._block_hash(self._root, adapter.encode())

    def match(
        self, token_ids: list[int], hashes: list[bytes] | None = None, adapter: str | None = None
    ) -> PrefixMatch:
        """Longest cached prefix of all but the last token, whose logits are needed. Changes nothing in the cache.

        `hashes`: of the prompt's leading full blocks, as far as they are known; those missing are appended.
        """
        size = self._pool.block_size
        limit = len(token_ids) - 1
        hashes = [] if hashes is None else hashes
        self.extend_hashes(hashes, token_ids, limit // size, adapter)
        blocks: list[int] = []
        parent: Parent = adapter
        for index in range(limit // size):
            entry = self._by_hash.get(hashes[index])
            tokens = tuple(token_ids[index * size : (index + 1) * size])
            if entry is None or entry.parent != parent or entry.tokens != tokens:
                break
            parent = entry.block
            blocks.append(parent)
        start = len(blocks) * size
        source, num_slots = self._nearest_child(parent, tuple(token_ids[start : min(start + size, limit)]))
        return PrefixMatch(tuple(blocks), source, num_slots, start + num_slots)

    def find(self, block_hash: bytes) -> int | None:
        """The full block with this hash."""
        entry = self._by_hash.get(block_hash)
        return None if entry is None else entry.block

    def hash_of(self, block: int) -> bytes | None:
        """None unless it is a full cached block."""
        entry = self._by_block.get(block)
        return None if entry is None else entry.hash

    def _nearest_child(self, parent: Parent, tokens: tuple[int, ...]) -> tuple[int | None, int]:
        children = self._children.get(parent, [])
        at = bisect_left(children, (tokens,))
        best: tuple[int | None, int] = (None, 0)
        for child_tokens, block in children[max(at - 1, 0) : at + 1]:
            shared = _num_common(tokens, child_tokens)
            if shared > best[1]:
                best = (block, shared)
        return best

    def insert(
        self, block: int, parent: Parent, tokens: tuple[int, ...], block_hash: bytes | None = None
    ) -> int | None:
        """Make a referenced block findable; returns the block that now stands for these tokens.

        A full block (block_size tokens) whose content is cached already is not inserted: the block that was there
        is returned, and the caller exchanges its own for it, so that a child's parent is always referenced with it.
        None when the hash collides with other content: the block stays private, and so must its successors.
        An open block (fewer tokens) can be inserted again with more tokens as its owner fills it. `block_hash`: of
        parent and tokens, where it is known already.
        """
        self._drop_open(block)
        if len(tokens) < self._pool.block_size:
            self._remember(CachedBlock(block, parent, None, tokens))
            return block
        key = block_hash or self._hash(parent, tokens)
        existing = self._by_hash.get(key)
        if existing is not None:
            is_same = existing.parent == parent and existing.tokens == tokens
            return existing.block if is_same else None
        entry = CachedBlock(block, parent, key, tokens)
        self._by_hash[key] = entry
        self._remember(entry)
        return block

    def _hash(self, parent: Parent, tokens: tuple[int, ...]) -> bytes:
        parent_hash = self._by_block[parent].hash if isinstance(parent, int) else self._root_of(parent)
        return self._block_hash(parent_hash, np.asarray(tokens, dtype=np.int32).tobytes())

    def _remember(self, entry: CachedBlock) -> None:
        self._by_block[entry.block] = entry
        insort(self._children.setdefault(entry.parent, []), (entry.tokens, entry.block))
        self._pool.mark_cached(entry.block)

    def _drop_open(self, block: int) -> None:
        if block in self._by_block:
            self._forget(block)
            self._pool.unmark_cached(block)

    def _forget(self, block: int) -> None:
        entry = self._by_block.pop(block)
        if entry.hash is not None:
            del self._by_hash[entry.hash]
        siblings = self._children[entry.parent]
        siblings.pop(bisect_left(siblings, (entry.tokens, block)))
        if not siblings:
            del self._children[entry.parent]

    def _leaf_below(self, block: int) -> int:
        """What must be evicted before `block`: only where hashes collide is a child needed less than its parent."""
        while siblings := self._children.get(block):
            block = siblings[-1][1]
        return block

    def check(self) -> None:
        """Raise AssertionError unless every cached block is marked so, and its parent is a full cached block."""
        for block, entry in self._by_block.items():
            parent = entry.parent
            if isinstance(parent, int) and (parent not in self._by_block or self._by_block[parent].hash is None):
                raise AssertionError("a cached block has outlived its parent")
            if not self._pool.is_cached(block) or (entry.hash is not None and self._by_hash[entry.hash] is not entry):
                raise AssertionError("a cached block cannot be found")


def _num_common(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))
