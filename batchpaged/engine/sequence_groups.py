"""Sequences of one row that share blocks: they part once their prompt is computed, and are chosen anew with every beam step.

Parting copies no keys and values: the new sequence's block table names the same blocks. Whoever first writes into a block
that others hold too gets a copy of its own (see block_tables.py).
"""

from collections.abc import Sequence as Iterable
from dataclasses import dataclass

from batchpaged.engine.beam_search import Continuation
from batchpaged.engine.block_pool import BlockPool
from batchpaged.engine.sequence import BeamGroup, Fork, Sequence


@dataclass
class GroupCounts:
    """Since the engine started, or a stage began."""

    num_groups: int = 0  # rows whose sequences have parted
    num_shared_blocks: int = 0  # times that a sequence took over a block of another one of its group
    num_copied_blocks: int = 0  # blocks copied because they were to be written and others held them
    num_held: int = 0  # blocks that groups held, summed over steps
    num_unshared: int = 0  # the same if each sequence had blocks of its own
    most_saved: int = 0  # blocks that sharing has saved in one step


class SequenceGroups:
    def __init__(self, pool: BlockPool) -> None:
        self.counts = GroupCounts()
        self._pool = pool

    def part(self, leader: Sequence) -> list[Sequence]:
        """The prompt is computed, its first tokens are being sampled: -> the other sequences, which run from now on."""
        forks, leader.forks = leader.forks, ()
        self.counts.num_groups += 1
        return [self._fork(leader, fork) for fork in forks]

    def restore(self, leader: Sequence) -> list[Sequence]:
        """The prompt is computed again: -> all beams, with the tokens that they had when they were preempted."""
        beams = leader.beams
        stored, beams.stored = beams.stored, []
        beams.members += [self._fork(leader, Fork(leader.row + i, leader.seed)) for i in range(1, len(stored))]
        for member, (token_ids, logprobs) in zip(beams.members, stored, strict=True):
            member.token_ids, member.logprobs = token_ids, logprobs
        beams.is_parted = True
        return beams.members

    def _fork(self, source: Sequence, fork: Fork) -> Sequence:
        """A sequence that runs, with the same tokens and blocks."""
        made = source.sibling(fork.seq_id, fork.seed, list(source.token_ids), fork.grammar)
        self._acquire(made.block_table)
        return made

    def _acquire(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self._pool.acquire(block)
        self.counts.num_shared_blocks += len(blocks)

    def move(self, beams: BeamGroup, chosen: list[Continuation]) -> list[Sequence]:
        """Each member becomes what it was chosen to be: an edit of block tables. -> the members from now on."""
        if not beams.is_parted:
            self.counts.num_groups += 1
            beams.is_parted = True
        parents = [beams.members[c.beam] for c in chosen]
        held = [member.block_table for member in beams.members]
        seq_ids = [parents[0].row + i for i in range(len(chosen))]
        children = [_child(parent, seq_id, c) for parent, seq_id, c in zip(parents, seq_ids, chosen, strict=True)]
        for child in children:
            self._acquire(child.block_table)
        self.counts.num_shared_blocks -= sum(len(p.block_table) for p in set(parents))  # these go on with their own
        for table in held:
            self._pool.release(reversed(table))
        beams.members, beams.tops = self._members(beams, children), {}
        return beams.members

    def _members(self, beams: BeamGroup, children: list[Sequence]) -> list[Sequence]:
        """The first member stays the object that it is: it is what others know of the row."""
        first, child = beams.members[0], children[0]
        first.token_ids, first.logprobs, first.num_known_tokens = child.token_ids, child.logprobs, child.num_known_tokens
        first.take_table(child)
        return [first, *children[1:]]

    def measure(self, running: Iterable[Sequence]) -> None:
        """Count what sharing saves now."""
        tables: dict[int, list[list[int]]] = {}
        for sequence in running:
            tables.setdefault(sequence.row, []).append(sequence.block_table)
        groups = [group for group in tables.values() if len(group) > 1]
        num_unshared = sum(len(table) for group in groups for table in group)
        num_held = sum(len(set().union(*group)) for group in groups)
        self.counts.num_unshared += num_unshared
        self.counts.num_held += num_held
        self.counts.most_saved = max(self.counts.most_saved, num_unshared - num_held)


def _child(parent: Sequence, seq_id: int, chosen: Continuation) -> Sequence:
    """Its blocks are not acquired yet."""
    child = parent.sibling(seq_id, parent.seed, [*parent.token_ids, chosen.token_id])
    child.logprobs.append(chosen.logprobs)
    return child
