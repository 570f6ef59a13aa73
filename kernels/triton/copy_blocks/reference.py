"""The same in torch operations."""

from collections.abc import Sequence

import torch


def copy_blocks(
    caches: Sequence[torch.Tensor], sources: torch.Tensor, targets: torch.Tensor, num_slots: torch.Tensor
) -> None:
    """All sources are read before a target is written; shapes as in launch.py."""
    for cache in caches:
        held = cache[sources].clone()
        for i, (target, count) in enumerate(zip(targets.tolist(), num_slots.tolist(), strict=True)):
            cache[target, :count] = held[i, :count]
