"""The same in torch operations, one query at a time, in float32."""

import torch

from batchpaged.kernels.triton.kv_reference import dequantise
from batchpaged.kernels.triton.paged_attention.arguments import PagedCache, Results, Runs, Scoring


def attend_tiles(
    query: torch.Tensor, cache: PagedCache, tiles: torch.Tensor, tile_rows: int, runs: Runs, scoring: Scoring, results: Results
) -> None:
    """Shapes as in launch.py."""
    keys, values = _numbers(cache.keys, cache.key_scales), _numbers(cache.values, cache.value_scales)
    for first, num_queries, first_block, run_start, begin, _, end, is_final in tiles.tolist():
        for index in range(first, first + num_queries):
            token, position = int(runs.tokens[index]), int(runs.positions[index])
            low = begin if scoring.sliding_window is None else max(begin, position + 1 - scoring.sliding_window)
            seen = torch.arange(low, max(low, min(end, position + 1))) - run_start
            slots = runs.blocks[first_block + seen // cache.keys.shape[1]], seen % cache.keys.shape[1]
            output, lse = _attend(query[token].float(), keys[slots], values[slots], scoring)
            if is_final:
                share = 1 if scoring.sinks is None else torch.sigmoid(lse - scoring.sinks.float())[:, None]
                results.output[token] = (output * share).to(results.output.dtype)
            else:
                results.partial_output[runs.partials[index]] = output
                results.partial_lse[runs.partials[index]] = lse


def _numbers(stored: torch.Tensor, scales: torch.Tensor | None) -> torch.Tensor:
    return stored.float() if scales is None else dequantise(stored, scales)


def _attend(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scoring: Scoring
) -> tuple[torch.Tensor, torch.Tensor]:
    """query [H, D], keys [n, G, D], values [n, G, DV] -> output [H, DV], lse [H]"""
    repeats = query.shape[0] // keys.shape[1]
    keys, values = (x.repeat_interleave(repeats, 1) for x in (keys, values))
    scores = torch.einsum("hd,nhd->hn", query, keys) * scoring.scaling
    if scoring.softcap is not None:
        scores = torch.tanh(scores / scoring.softcap) * scoring.softcap
    lse = scores.logsumexp(1)  # -inf where there is no key
    weights = (scores - lse.clamp_min(torch.finfo(lse.dtype).min)[:, None]).exp()
    return torch.einsum("hn,nhd->hd", weights, values), lse
