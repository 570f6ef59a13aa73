"""What one pass over neighbours tells about a data set before anything is computed."""

from dataclasses import dataclass

from batchpaged.planning.order import Order


@dataclass(frozen=True)
class PlanSummary:
    num_rows: int  # of the input
    num_failed: int  # rows without a prompt
    num_truncated: int
    num_prompt_tokens: int
    num_unique_tokens: int  # nodes of the prefix tree: prompt tokens left if every shared prefix is computed once
    num_duplicates: int  # prompts equal to an earlier one
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


def num_duplicates(order: Order) -> int:
    # In sorted order no prompt is a mere beginning of the one before it: what shares all its tokens is equal.
    return int((order.num_shared == order.num_tokens)[1:].sum())


def num_prefix_groups(order: Order) -> int:
    starts_group = order.num_shared * 2 <= order.num_tokens
    return int(starts_group.sum())
