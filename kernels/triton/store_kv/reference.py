"""The same in torch operations."""

import torch

from batchpaged.kernels.triton.kv_reference import quantise


def store_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slots: torch.Tensor,
    key_scales: torch.Tensor | None = None,
    value_scales: torch.Tensor | None = None,
) -> None:
    """Shapes as in launch.py."""
    _store(key, key_cache, slots, key_scales)
    _store(value, value_cache, slots, value_scales)


def _store(new: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor, scales: torch.Tensor | None) -> None:
    new, slots = new[slots >= 0], slots[slots >= 0]
    place = slots // cache.shape[1], slots % cache.shape[1]
    if scales is None:
        cache[place] = new.to(cache.dtype).nan_to_num(0.0, 0.0, 0.0)
        return
    stored, scale = quantise(new, cache.dtype)
    cache.view(torch.uint8)[place] = stored.view(torch.uint8)  # index_put knows no float8
    scales[place] = scale
