"""What running sequences need of blocks before they can write, more of them and such as nobody else holds; and how they give
them back.
"""

from batchpaged.engine.block_pool import BlockPool
from batchpaged.engine.future_uses import FutureUses
from batchpaged.engine.sequence import Sequence, Status
from batchpaged.engine.step import BlockCopy


class BlockTables:
    def __init__(self, pool: BlockPool, uses: FutureUses | None) -> None:
        """`uses`: are told of what is given back; None without a cache."""
        self._pool = pool
        self._uses = uses

    def num_missing(self, sequence: Sequence) -> int:
        """Blocks that it needs for all of its tokens, and to write into none that others hold."""
        return self.num_blocks(sequence.num_tokens) - len(sequence.block_table) + self._writes_into_shared(sequence)

    def num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._pool.block_size)

    def _writes_into_shared(self, sequence: Sequence) -> bool:
        index = sequence.num_computed_tokens // self._pool.block_size
        table = sequence.block_table
        return index < len(table) and self._pool.reference_counts[table[index]] > 1

    def extend(self, sequence: Sequence, copies: list[BlockCopy]) -> None:
        """Allocate one of the blocks that are missing; a copy-on-write is added to `copies`."""
        if not self._writes_into_shared(sequence):
            sequence.block_table.append(self._pool.allocate())
            return
        index, num_slots = divmod(sequence.num_computed_tokens, self._pool.block_size)
        source, sequence.block_table[index] = sequence.block_table[index], self._pool.allocate()
        copies.append(BlockCopy(source, sequence.block_table[index], num_slots))
        self._pool.release([source])

    def release(self, sequence: Sequence, status: Status) -> None:
        """It does not run any more: give all blocks back, the last one first (see FreeQueue)."""
        if self._uses is not None:
            self._uses.before_release(sequence)
        self._pool.release(reversed(sequence.block_table))
        sequence.block_table = []
        sequence.status = status
