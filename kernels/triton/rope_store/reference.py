"""The same in torch operations."""

import torch

from batchpaged.kernels.triton.store_kv.reference import store_kv


def rope_store(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cosine: torch.Tensor,
    sine: torch.Tensor,
    is_interleaved: bool,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slots: torch.Tensor,
    key_scales: torch.Tensor | None = None,
    value_scales: torch.Tensor | None = None,
) -> torch.Tensor:
    """Shapes as in launch.py."""
    turned = rotate(key, cosine, sine, is_interleaved)
    store_kv(turned, value, key_cache, value_cache, slots, key_scales, value_scales)
    return rotate(query, cosine, sine, is_interleaved).to(query.dtype)


def rotate(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor, is_interleaved: bool) -> torch.Tensor:
    """x [num_tokens, heads, dim] -> float32, the same shape; the first dimensions are rotated."""
    turned, rest = x.float().split([cosine.shape[1], x.shape[2] - cosine.shape[1]], dim=-1)
    if is_interleaved:
        partners = torch.stack([-turned[..., 1::2], turned[..., ::2]], dim=-1).flatten(-2)
    else:
        low, high = turned.chunk(2, dim=-1)
        partners = torch.cat([-high, low], dim=-1)
    return torch.cat([turned * cosine.float()[:, None] + partners * sine.float()[:, None], rest], dim=-1)
