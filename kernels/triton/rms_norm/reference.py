"""The same in torch operations, as transformers writes it."""

import torch


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    epsilon: float,
    residual: torch.Tensor | None = None,
    has_unit_offset: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Shapes as in launch.py."""
    total = x if residual is None else x + residual
    wide = total.float()
    normal = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)
    if has_unit_offset:
        return (normal * (1.0 + weight.float())).to(x.dtype), total
    return (normal.to(x.dtype) * weight).to(x.dtype), total
