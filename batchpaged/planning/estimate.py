"""What a run will need, before it starts: arithmetic and memory."""

from dataclasses import dataclass

from batchpaged.planning.cost import ModelCost
from batchpaged.planning.summary import PlanSummary


@dataclass(frozen=True)
class Estimate:
    flops: float  # of the whole run at best: unique prompt tokens, and every completion at its longest
    kv_bytes_needed: int  # for as many rows at once as the engine runs, each with completions at their longest


def estimate(summary: PlanSummary, cost: ModelCost, max_tokens: int, max_rows: int) -> Estimate:
    """`max_tokens`: of all completions of a row together; `max_rows`: that run at once."""
    num_runnable = summary.num_rows - summary.num_failed
    flops = summary.num_unique_tokens * cost.flops_per_prefill_token
    flops += num_runnable * max_tokens * cost.flops_per_decode_token
    num_rows = min(num_runnable, max_rows)
    mean_prompt = summary.num_prompt_tokens / num_runnable if num_runnable else 0
    mean_unique = summary.num_unique_tokens / num_runnable if num_runnable else 0
    # Running rows share prefixes as the data set does on average; one of them may be the longest.
    num_tokens = num_rows * (mean_unique + max_tokens) + (mean_prompt - mean_unique) + summary.longest_prompt
    return Estimate(flops, int(num_tokens * cost.kv_bytes_per_token) if num_runnable else 0)
