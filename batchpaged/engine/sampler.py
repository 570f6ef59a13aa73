"""Chooses the next token of each sequence from its logits."""

from functools import cache
from importlib.util import find_spec

import numpy as np
import torch

from batchpaged.attention.upload import upload
from batchpaged.engine.grammar import allowed_tokens
from batchpaged.engine.sampling_params import SamplingParams
from batchpaged.engine.step import SampleRequest


def sample(logits: torch.Tensor, requests: list[SampleRequest]) -> torch.Tensor:
    """logits [n, vocab_size] of n requests -> token ids int64 [n]. A row's choice depends on its own logits and seed alone."""
    logits = logits.float()
    for row, request in enumerate(requests):
        if request.token_ids is not None:
            _penalise(logits[row], request)
    forbid(logits, requests)
    if logits.device.type != "cpu" and _has_triton():
        return sample_by_kernel(logits, requests)
    params = requests[0].params
    if params.is_greedy:
        return _argmax(logits)
    return _draw(logits, params, upload(np.array([_uniform(request) for request in requests]), logits.device))


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def sample_by_kernel(logits: torch.Tensor, requests: list[SampleRequest]) -> torch.Tensor:
    """Without sorting. The same distribution, but not the same samples, as on a CPU."""
    from batchpaged.kernels.triton.sample.launch import SamplingRows, sample  # triton, which a CPU does not need

    params, num_rows = requests[0].params, len(requests)

    def column(value: float, dtype: torch.dtype) -> torch.Tensor:
        return torch.full((num_rows,), value, dtype=dtype, device=logits.device)

    rows = SamplingRows(
        temperatures=column(params.temperature, torch.float32),
        top_ks=column(min(params.top_k or logits.shape[1], logits.shape[1]), torch.int32),
        top_ps=column(params.top_p, torch.float32),
        min_ps=column(params.min_p, torch.float32),
        seeds=upload(np.array([request.seed for request in requests], dtype=np.uint64).view(np.int64), logits.device),
        positions=upload(np.array([request.num_tokens for request in requests], dtype=np.int32), logits.device),
    )
    return sample(logits, rows)


def forbid(logits: torch.Tensor, requests: list[SampleRequest]) -> None:
    """In place on [n, vocab_size]: minus infinity wherever a request's grammar does not allow the token."""
    rows = [row for row, request in enumerate(requests) if request.grammar is not None]
    if not rows:
        return
    masks = allowed_tokens([requests[row].grammar for row in rows])
    forbidden = ~_unpack(upload(masks.view(np.uint8), logits.device))[:, : logits.shape[1]]
    if len(rows) == len(requests):
        logits.masked_fill_(forbidden, -torch.inf)
    else:
        index = upload(rows, logits.device)
        logits[index] = logits[index].masked_fill_(forbidden, -torch.inf)


def _unpack(packed: torch.Tensor) -> torch.Tensor:
    """uint8 [n, bytes] -> bool [n, 8 * bytes], the lowest bit of a byte first"""
    bits = torch.arange(8, dtype=torch.uint8, device=packed.device)
    return (packed.unsqueeze(-1) >> bits & 1).bool().flatten(1)


def _argmax(logits: torch.Tensor) -> torch.Tensor:
    if logits.device.type != "cpu":
        return logits.argmax(-1)
    from batchpaged.kernels.cpu.elementwise import argmax

    best = np.empty(len(logits), dtype=np.int64)
    argmax(logits.contiguous().numpy(), best)  # the kernel counts elements flat
    return torch.from_numpy(best)


def _penalise(logits: torch.Tensor, request: SampleRequest) -> None:
    """Repetition penalty of CTRL (Keskar et al., 2019), in place on [vocab_size]; as transformers computes it."""
    seen = torch.tensor(request.token_ids, device=logits.device).unique()
    scores = logits[seen]
    penalty = request.params.repetition_penalty
    logits[seen] = torch.where(scores < 0, scores * penalty, scores / penalty)


def _uniform(request: SampleRequest) -> float:
    """A number in [0, 1) that depends on the row's seed and the token's position, and on nothing else."""
    key = np.array([request.seed, request.num_tokens], dtype=np.uint64)  # a plain list would pass through float64
    return float(np.random.Generator(np.random.Philox(key=key)).random())


def _draw(logits: torch.Tensor, params: SamplingParams, uniform: torch.Tensor) -> torch.Tensor:
    """Inverse of the cumulative distribution, over tokens from the most to the least likely."""
    scores, order = (logits.double() / params.temperature).sort(dim=-1, descending=True, stable=True)
    probabilities = filter_probabilities(scores.softmax(-1), params)
    cumulative = probabilities.cumsum(-1)
    target = uniform * cumulative[:, -1]
    index = torch.searchsorted(cumulative, target.unsqueeze(-1), right=True)
    last_kept = (probabilities > 0).sum(-1, keepdim=True) - 1
    # The second bound is for logits that overflowed: their row gets any token, and the others of the step their own.
    return order.gather(-1, index.minimum(last_kept).clamp_min(0)).squeeze(-1)


def filter_probabilities(probabilities: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Zero what top-k, top-p and min-p leave out; rows [n, vocab_size] sorted descending. The best token stays.

    In transformers' order: top-k first, then top-p, then min-p, each on what the one before left, renormalised.
    """
    if params.top_k is not None:
        probabilities[:, params.top_k :] = 0
    if params.top_p < 1:
        share = probabilities / probabilities.sum(-1, keepdim=True)
        before = share.cumsum(-1) - share  # of all more likely tokens
        probabilities = probabilities.masked_fill(before >= params.top_p, 0)
    if params.min_p > 0:
        probabilities = probabilities.masked_fill(probabilities < params.min_p * probabilities[:, :1], 0)
    return probabilities
