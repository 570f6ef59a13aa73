"""Which queries attend to which run of blocks: one pure function from block tables to an attention plan.

Sequences whose block tables begin with the same blocks attend to those blocks together, as one matrix product per
run instead of one per sequence; what is left of each context is attended to alone. The partial results are merged by
log-sum-exp. The idea of splitting off shared prefixes is that of Hydragen (Juravsky et al., 2024) and of cascade
inference in FlashInfer (Ye et al., 2024).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from batchpaged.attention.sharing import SharingRule
from batchpaged.engine.step import SequenceStep

# Most queries of one item: bounds the memory of a score matrix, and lets causal items skip keys they cannot see.
MAX_QUERIES = 128


@dataclass(frozen=True)
class WorkItem:
    """Some queries attend to one run of blocks.

    Query i sees key position p when p <= its own position, and p < key_end (and within the sliding window, if any).
    """

    query_indices: tuple[int, ...]  # rows of the step's token axis
    query_positions: tuple[int, ...]  # of the same tokens in their sequences
    blocks: tuple[int, ...]  # block ids
    key_start: int  # position of the first slot of the first block
    key_end: int  # positions from here on are not part of the context
    level: int  # 0: the queries' own blocks; n: the n-th shared run before them. No query is in two items of a level


@dataclass(frozen=True)
class _Member:
    """A sequence's queries in this step."""

    first_query: int  # row of its first query in the step's token axis
    step: SequenceStep
    sharable: tuple[int, ...]  # blocks that lie wholly before its first query

    @property
    def first_position(self) -> int:
        return self.step.context_length - self.step.query_length


@dataclass(frozen=True)
class _Run:
    """Consecutive members, sorted by their blocks, that share their first `depth` blocks."""

    first: int
    end: int
    depth: int
    start: int  # blocks before this one are covered by shared runs
    level: int  # of the next shared run


def plan_attention(sequences: tuple[SequenceStep, ...], block_size: int, rule: SharingRule) -> list[WorkItem]:
    """Cover every (query, visible key) pair of the step exactly once. A run is shared where `rule` says that it pays."""
    members, first_query = [], 0
    for step in sequences:
        num_sharable = (step.context_length - step.query_length) // block_size
        members.append(_Member(first_query, step, step.block_table[:num_sharable]))
        first_query += step.query_length
    members.sort(key=lambda member: member.sharable)
    return list(_split(members, block_size, rule))


def _split(members: list[_Member], block_size: int, rule: SharingRule) -> Iterator[WorkItem]:
    """Depth first, without recursion: prompts that each extend the one before branch as often as there are prompts."""
    num_queries = [0, *accumulate(member.step.query_length for member in members)]  # of the members before each
    runs = [_Run(0, len(members), 0, 0, 1)]
    while runs:
        run = runs.pop()
        if run.end - run.first == 1:
            yield from _own_items(members[run.first], run.start, block_size)
            continue
        depth, start, level = _common_depth(members, run), run.start, run.level
        queries = num_queries[run.end] - num_queries[run.first]
        if depth > start and _pays(run.end - run.first, queries, (depth - start) * block_size, rule):
            yield from _shared_items(members[run.first : run.end], start, depth, level, block_size)
            start, level = depth, level + 1
        groups = [_Run(first, end, depth + 1, start, level) for first, end in _groups_at(members, run, depth)]
        runs += reversed(groups)


def _pays(num_members: int, num_queries: int, num_keys: int, rule: SharingRule) -> bool:
    # Costs of a member alone are linear in its queries: one member may stand for the queries of all.
    alone = rule.alone(num_queries, num_keys) + (num_members - 1) * rule.alone(0, num_keys)
    return rule.together(num_queries, num_keys) < alone


def _common_depth(members: list[_Member], run: _Run) -> int:
    # Sorted: what the first and the last share, all share.
    first, last = members[run.first].sharable, members[run.end - 1].sharable
    limit, depth = min(len(first), len(last)), run.depth
    while depth < limit and first[depth] == last[depth]:
        depth += 1
    return min(depth, limit)


def _groups_at(members: list[_Member], run: _Run, depth: int) -> Iterator[tuple[int, int]]:
    """(first, end) of the members with the same block at `depth`; one whose blocks end there stands alone."""
    last = members[run.end - 1].sharable
    first = run.first
    while first < run.end:
        blocks, end = members[first].sharable, first + 1
        if len(blocks) > depth:
            # Where few leave and all others go on together, these are not looked at one by one.
            end = run.end if blocks[depth] == last[depth] else _end_of_group(members, first, depth)
        yield first, end
        first = end


def _end_of_group(members: list[_Member], first: int, depth: int) -> int:
    """Of the members with the block of the first at `depth`, among others with a later one."""
    block, end = members[first].sharable[depth], first + 1
    while members[end].sharable[depth] == block:
        end += 1
    return end


def _shared_items(members: list[_Member], start: int, end: int, level: int, block_size: int) -> Iterator[WorkItem]:
    indices = [i for m in members for i in range(m.first_query, m.first_query + m.step.query_length)]
    positions = [p for m in members for p in range(m.first_position, m.step.context_length)]
    blocks = members[0].sharable[start:end]
    for at in range(0, len(indices), MAX_QUERIES):
        chunk = slice(at, at + MAX_QUERIES)
        yield WorkItem(
            tuple(indices[chunk]), tuple(positions[chunk]), blocks, start * block_size, end * block_size, level
        )


def _own_items(member: _Member, start: int, block_size: int) -> Iterator[WorkItem]:
    step = member.step
    for offset in range(0, step.query_length, MAX_QUERIES):
        num_queries = min(MAX_QUERIES, step.query_length - offset)
        position = member.first_position + offset
        index = member.first_query + offset
        key_end = position + num_queries
        yield WorkItem(
            tuple(range(index, index + num_queries)),
            tuple(range(position, key_end)),
            step.block_table[start : -(-key_end // block_size)],
            start * block_size,
            key_end,
            level=0,
        )
