"""Sizes to which decode steps are padded, so that few different ones occur."""

from bisect import bisect_left

from batchpaged.engine.step import SequenceStep, StepPlan


def decode_buckets(max_sequences: int) -> tuple[int, ...]:
    """1, 2, 4, 8, 16, 24, ... max_sequences: beyond 8 fewer than 8 sequences are padding."""
    sizes = [1, 2, 4, *range(8, max_sequences, 8)]
    return (*(size for size in sizes if size < max_sequences), max_sequences)


def bucket_of(num_sequences: int, buckets: tuple[int, ...]) -> int:
    """The smallest that holds them; they must be at most as many as the largest."""
    return buckets[bisect_left(buckets, num_sequences)]


def padded(plan: StepPlan, num_sequences: int, scratch_block: int, block_size: int) -> StepPlan:
    """A decode step with more sequences behind its own, all of one token, in a block that nobody reads for its content."""
    num_more = num_sequences - len(plan.sequences)
    scratch = SequenceStep(-1, 1, 1, (scratch_block,), None)
    return StepPlan(
        token_ids=plan.token_ids + (0,) * num_more,
        positions=plan.positions + (0,) * num_more,
        slots=plan.slots + (scratch_block * block_size,) * num_more,
        sequences=plan.sequences + (scratch,) * num_more,
        copies=plan.copies,
        pending=plan.pending,
    )
