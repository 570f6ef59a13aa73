"""The same in torch operations: sorted, with the very noise of the kernel."""

import torch

from batchpaged.kernels.triton.philox_reference import philox


def sample(
    logits: torch.Tensor,
    temperatures: torch.Tensor,
    top_ks: torch.Tensor,
    top_ps: torch.Tensor,
    min_ps: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
) -> torch.Tensor:
    """Shapes as in launch.py; logits without NaN."""
    best = logits.float().max(-1, keepdim=True).values
    first_best = (logits.float() == best).float().argmax(-1)
    is_greedy = temperatures == 0
    relative = (logits.double() - best) / torch.where(is_greedy, 1.0, temperatures.double())[:, None]
    scores = _filtered(relative, top_ks, top_ps, min_ps) + gumbel(seeds, positions, logits.shape[1])
    return torch.where(is_greedy, first_best, scores.argmax(-1))


def _filtered(
    relative: torch.Tensor, top_ks: torch.Tensor, top_ps: torch.Tensor, min_ps: torch.Tensor
) -> torch.Tensor:
    """-infinity where top-k, then top-p, then min-p leave a token out."""
    ordered, order = relative.sort(dim=-1, descending=True, stable=True)
    probabilities = ordered.exp()
    probabilities[torch.arange(relative.shape[1], device=relative.device) >= top_ks[:, None]] = 0
    before = probabilities.cumsum(-1) - probabilities
    probabilities[(before >= top_ps[:, None].double() * probabilities.sum(-1, keepdim=True)) & (top_ps < 1)[:, None]] = 0
    probabilities[probabilities < min_ps[:, None].double()] = 0
    kept = torch.zeros_like(relative, dtype=torch.bool).scatter(-1, order, probabilities > 0)
    return relative.masked_fill(~kept, float("-inf"))


def gumbel(seeds: torch.Tensor, positions: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """-> float64 [num_rows, vocab_size]"""
    tokens = torch.arange(vocab_size, device=seeds.device).expand(len(seeds), -1)
    random = philox(seeds, tokens, positions.long()[:, None].expand_as(tokens))
    u = (random.double() + 0.5) * 2.0**-32
    return -torch.log(-torch.log1p(-u))
