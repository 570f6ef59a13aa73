"""Attention computed one query at a time, straight from its definition."""

import torch

from batchpaged.attention.backend import AttentionParams
from batchpaged.engine.step import StepPlan


def naive(
    plan: StepPlan, keys: torch.Tensor, values: torch.Tensor, query: torch.Tensor, params: AttentionParams
) -> torch.Tensor:
    """keys, values [num_kv_heads, num_blocks, block_size, dim] -> [num_tokens, num_heads, value_dim]"""
    num_heads, num_tokens, _ = query.shape
    repeats = num_heads // keys.shape[0]
    output = torch.full((num_tokens, num_heads, values.shape[-1]), float("nan"))
    row = 0
    for step in plan.sequences:
        table = list(step.block_table)
        k = keys[:, table].flatten(1, 2).repeat_interleave(repeats, 0)
        v = values[:, table].flatten(1, 2).repeat_interleave(repeats, 0)
        for position in range(step.context_length - step.query_length, step.context_length):
            first = 0 if params.sliding_window is None else max(0, position + 1 - params.sliding_window)
            scores = torch.einsum("hd,hld->hl", query[:, row], k[:, first : position + 1]) * params.scaling
            if params.softcap is not None:
                scores = params.softcap * torch.tanh(scores / params.softcap)
            if params.sinks is not None:
                scores = torch.cat([scores, params.sinks[:, None]], dim=1)
            weights = scores.softmax(-1)[:, : position + 1 - first]
            output[row] = torch.einsum("hl,hld->hd", weights, v[:, first : position + 1])
            row += 1
    return output
