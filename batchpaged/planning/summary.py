"""What one pass over neighbours tells about a data set before anything is computed."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from batchpaged.planning.order import Order


@dataclass(frozen=True)
class PlanSummary:
    num_rows: int  # of the input
    num_failed: int  # rows without a prompt
    num_truncated: int
    num_prompt_tokens: int
    num_unique_tokens: int  # nodes of the prefix tree: prompt tokens left if every shared prefix is computed once
    num_duplicates: int  # rows whose prompt, and grammar if rows have their own, an earlier row has
    num_prefix_groups: int  # runs of neighbours that share more than half of their prompts
    longest_prompt: int  # tokens
    longest_row_id: str | None
    num_units: int

    @property
    def hit_rate_ceiling(self) -> float | None:
        """Best possible share of prompt tokens that are served from the cache."""
        return 1 - self.num_unique_tokens / self.num_prompt_tokens if self.num_prompt_tokens else None


def num_unique_tokens(order: Order) -> int:
    return int((order.num_tokens - order.num_shared).sum())


def num_duplicates(order: Order, grammars: pa.StringArray) -> int:
    """`grammars`: in planned order; null: that of the run."""
    is_equal = _is_equal(order)
    if grammars.null_count == len(grammars):
        return int(is_equal.sum())
    codes = grammars.dictionary_encode(null_encoding="encode").indices.to_numpy()
    pairs = np.stack([np.cumsum(~is_equal), codes])
    return len(order) - np.unique(pairs, axis=1).shape[1]


def ends_of_equal(order: Order) -> tuple[range, range]:
    """Places of the prompts that are equal to the first one, and to the last."""
    starts = np.flatnonzero(~_is_equal(order))
    if len(starts) == 0:
        return range(0), range(0)
    return range(int(starts[1]) if len(starts) > 1 else len(order)), range(int(starts[-1]), len(order))


def _is_equal(order: Order) -> np.ndarray:
    """bool [n]: whether a prompt is that of the row before."""
    # In sorted order no prompt is a mere beginning of the one before it: what shares all its tokens is equal.
    is_equal = order.num_shared == order.num_tokens
    is_equal[:1] = False
    return is_equal


def num_prefix_groups(order: Order) -> int:
    starts_group = order.num_shared * 2 <= order.num_tokens
    return int(starts_group.sum())
