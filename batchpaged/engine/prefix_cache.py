"""The prefix cache: finds blocks that already hold the keys and values of a prompt's leading tokens.

Full blocks are found by hash, as in vLLM (Kwon et al., 2023, "Efficient Memory Management for Large Language
Model Serving with PagedAttention"): xxh3-128 over the parent's hash and the block's token ids. A hash only leads
to a candidate; a hit counts after token ids and parent block match exactly. Where a prompt leaves all cached
prompts inside a block, the block that shares most of its leading tokens is found as well, to be copied.

A block that is evicted while its tokens are still needed may be stored in a lower tier (see memory_tiers.py). It stays in the
tree, without a block of the pool, until it is loaded into one again, computed again or dropped there.
"""

from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import xxhash

from batchpaged.engine.block_pool import BlockPool
from batchpaged.engine.cached_block import CachedBlock, Root
from batchpaged.engine.memory_tiers import MemoryTiers

Parent = int | Root  # what a block follows: a block id, or where a prompt starts its root
BlockHash = Callable[[bytes, bytes], bytes]  # (parent hash, token ids as int32 bytes) -> hash


def xxh3_128(parent: bytes, tokens: bytes) -> bytes:
    return xxhash.xxh3_128_digest(parent + tokens)


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """What the cache holds of a prompt: whole blocks to share, then slots of one more block to copy.

    `stored` follow the whole blocks too, but have to be loaded first. Where they are, nothing is copied.
    """

    blocks: tuple[int, ...]
    copy_source: int | None
    num_copied_slots: int  # 0 when there is nothing to copy
    num_tokens: int  # covered by blocks and copied slots
    stored: tuple[CachedBlock, ...] = ()


NO_MATCH = PrefixMatch((), None, 0, 0)


def with_stored(match: PrefixMatch, stored: tuple[CachedBlock, ...], block_size: int) -> PrefixMatch:
    """The same, but of its stored blocks these are loaded; where there are any, no slots are copied."""
    if not stored:
        return replace(match, stored=())
    return PrefixMatch(match.blocks, None, 0, (len(match.blocks) + len(stored)) * block_size, stored)


def without_last(match: PrefixMatch, block_size: int) -> PrefixMatch:
    """The same, but the last token covered is computed again, in a block of its own: what the model says after it is wanted.

    All of its slots are copied, for what lies in them beside keys and values; such blocks are never stored.
    """
    if not match.num_tokens:
        return match
    if match.copy_source is not None:
        return replace(match, num_tokens=match.num_tokens - 1)
    return PrefixMatch(match.blocks[:-1], match.blocks[-1], block_size, match.num_tokens - 1)


class PrefixCache:
    """Owns the findability of blocks; the pool owns their lives.

    `root` seeds every hash: it differs per run, model and dtype, and with that of a sequence per adapter, so equal tokens of
    different models never meet.
    """

    def __init__(self, pool: BlockPool, root: bytes, block_hash: BlockHash = xxh3_128) -> None:
        self._pool = pool
        self._root = root
        self._block_hash = block_hash
        self._by_hash: dict[bytes, CachedBlock] = {}
        self._by_block: dict[int, CachedBlock] = {}
        # Children in the pool by token ids, sorted: the longest common prefix is always with a neighbour.
        self._children: dict[CachedBlock | Root, list[tuple[tuple[int, ...], int]]] = {}
        self._stored_below: dict[CachedBlock | Root, set[CachedBlock]] = {}  # children in lower tiers
        self._tiers: MemoryTiers | None = None
        self.stage = 0  # that new blocks are of; none follows a block of a later one
        pool.on_evict = self._evict
        pool.leaf_below = self._leaf_below

    def __len__(self) -> int:
        return len(self._by_block)

    def store_in(self, tiers: MemoryTiers) -> None:
        """Let these take what is evicted while it is needed."""
        self._tiers = tiers
        tiers.on_drop = self._drop_stored

    def extend_hashes(self, hashes: list[bytes], token_ids: list[int], num_blocks: int, root: Root = None) -> None:
        """Append the hashes of a prompt's leading full blocks until there are `num_blocks` of them."""
        size = self._pool.block_size
        content = np.asarray(token_ids[len(hashes) * size : num_blocks * size], dtype=np.int32).tobytes()
        parent_hash = hashes[-1] if hashes else self._root_hash(root)
        for start in range(0, len(content), 4 * size):
            parent_hash = self._block_hash(parent_hash, content[start : start + 4 * size])
            hashes.append(parent_hash)

    def _root_hash(self, root: Root) -> bytes:
        return self._root if root is None else self._block_hash(self._root, root.encode())

    def match(self, token_ids: list[int], hashes: list[bytes] | None = None, root: Root = None) -> PrefixMatch:
        """Longest cached prefix of all but the last token, whose logits are needed. Changes nothing in the cache.

        `hashes`: of the prompt's leading full blocks, as far as they are known; those missing are appended.
        """
        size = self._pool.block_size
        limit = len(token_ids) - 1
        hashes = [] if hashes is None else hashes
        self.extend_hashes(hashes, token_ids, limit // size, root)
        found = self._walk(token_ids, hashes, limit // size, root)
        blocks = tuple(node.block for node in found if node.block is not None)
        parent, start = found[len(blocks) - 1] if blocks else root, len(blocks) * size
        source, num_slots = self._nearest_child(parent, tuple(token_ids[start : min(start + size, limit)]))
        return PrefixMatch(blocks, source, num_slots, start + num_slots, tuple(found[len(blocks) :]))

    def _walk(self, token_ids: list[int], hashes: list[bytes], num_blocks: int, root: Root) -> list[CachedBlock]:
        """Nodes of the prompt's leading blocks: first those in the pool, then those that are stored."""
        size = self._pool.block_size
        found: list[CachedBlock] = []
        parent: CachedBlock | Root = root
        for index in range(num_blocks):
            node = self._by_hash.get(hashes[index])
            tokens = tuple(token_ids[index * size : (index + 1) * size])
            if node is None or node.parent != parent or node.tokens != tokens:
                break
            found.append(node)
            parent = node
        return found

    def num_earlier_tokens(self, match: PrefixMatch) -> int:
        """How many of the tokens that it covers an earlier stage computed: the first ones. They keep that in lower tiers too."""
        if not self.stage:
            return 0
        nodes = [*map(self._by_block.__getitem__, match.blocks), *match.stored]
        num_tokens = sum(node.stage < self.stage for node in nodes) * self._pool.block_size
        if match.copy_source is not None and self._by_block[match.copy_source].stage < self.stage:
            num_tokens += match.num_copied_slots
        return min(num_tokens, match.num_tokens)

    def find(self, block_hash: bytes) -> CachedBlock | None:
        """The full block with this hash."""
        return self._by_hash.get(block_hash)

    def hash_of(self, block: int) -> bytes | None:
        """None unless it is a full cached block."""
        node = self._by_block.get(block)
        return None if node is None else node.hash

    def _nearest_child(self, parent: "CachedBlock | Root", tokens: tuple[int, ...]) -> tuple[int | None, int]:
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
        above = self._by_block[parent] if isinstance(parent, int) else parent
        root, depth = (above.root, above.depth + 1) if isinstance(above, CachedBlock) else (above, 0)
        if len(tokens) < self._pool.block_size:
            self._place(CachedBlock(above, None, tokens, root, depth, self.stage), block)
            return block
        key = block_hash or self._hash(above, tokens)
        existing = self._by_hash.get(key)
        if existing is None:
            self._by_hash[key] = node = CachedBlock(above, key, tokens, root, depth, self.stage)
            self._place(node, block)
            return block
        if existing.parent != above or existing.tokens != tokens:
            return None
        if existing.block is None:  # computed again all the same
            self._tiers.give_up(existing)
            self.put_back(existing, block)
        return existing.block

    def _hash(self, parent: "CachedBlock | Root", tokens: tuple[int, ...]) -> bytes:
        parent_hash = parent.hash if isinstance(parent, CachedBlock) else self._root_hash(parent)
        return self._block_hash(parent_hash, np.asarray(tokens, dtype=np.int32).tobytes())

    def _place(self, node: CachedBlock, block: int) -> None:
        node.block = block
        self._by_block[block] = node
        insort(self._children.setdefault(node.parent, []), (node.tokens, block))
        self._pool.mark_cached(block)

    def _drop_open(self, block: int) -> None:
        if block in self._by_block:
            self.forget(block)

    def forget(self, block: int) -> None:
        """This (referenced) block cannot be found any more. Nothing in the pool follows it."""
        self._remove(self._displace(block))
        self._pool.unmark_cached(block)

    def _evict(self, block: int) -> None:
        node = self._displace(block)
        if self._tiers is not None and node.hash is not None and self._tiers.take_in(node, block):
            self._stored_below.setdefault(node.parent, set()).add(node)
        else:
            self._remove(node)

    def _displace(self, block: int) -> CachedBlock:
        """It is no block of the pool any more."""
        node = self._by_block.pop(block)
        siblings = self._children[node.parent]
        siblings.pop(bisect_left(siblings, (node.tokens, block)))
        if not siblings:
            del self._children[node.parent]
        node.block = None
        return node

    def _remove(self, node: CachedBlock) -> None:
        """From the tree, and with it what is stored below it."""
        if node.hash is not None:
            del self._by_hash[node.hash]
        for child in list(self._stored_below.get(node, ())):
            self._tiers.drop(child)

    # --- lower tiers ---

    def put_back(self, node: CachedBlock, block: int) -> None:
        """A node that was stored is in this (referenced) block from now on. Its parent is in the pool."""
        self._unstore(node)
        self._place(node, block)

    def _unstore(self, node: CachedBlock) -> None:
        siblings = self._stored_below[node.parent]
        siblings.discard(node)
        if not siblings:
            del self._stored_below[node.parent]

    def _drop_stored(self, node: CachedBlock) -> None:
        self._unstore(node)
        self._remove(node)

    def _leaf_below(self, block: int) -> int:
        """What must be evicted before `block`: only where hashes collide is a child needed less than its parent."""
        while siblings := self._children.get(self._by_block[block]):
            block = siblings[-1][1]
        return block

    def check(self) -> None:
        """Raise AssertionError unless every node is in one tier, marked so, and its parent in the same or a higher one."""
        for block, node in self._by_block.items():
            if node.block != block or node.place is not None:
                raise AssertionError("a cached block is in two tiers")
            if isinstance(node.parent, CachedBlock) and (node.parent.block is None or node.parent.hash is None):
                raise AssertionError("a cached block has outlived its parent")
            if isinstance(node.parent, CachedBlock) and node.parent.stage > node.stage:
                raise AssertionError("a block follows one of a later stage")
            is_found = node.hash is None or self._by_hash[node.hash] is node
            if not self._pool.is_cached(block) or not is_found:
                raise AssertionError("a cached block cannot be found")
        stored = {node for node in self._by_hash.values() if node.block is None}
        if stored != set().union(*self._stored_below.values()) or any(node.place is None for node in stored):
            raise AssertionError("a block is in no tier")
        if any(isinstance(n.parent, CachedBlock) and self._by_hash.get(n.parent.hash) is not n.parent for n in stored):
            raise AssertionError("a stored block has outlived its parent")
        if self._tiers is not None:
            self._tiers.check(stored)


def _num_common(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))
