"""Numbers in 8 bits with a scale, in torch operations; triton is not needed. See kv_format.py."""

import torch

SMALLEST = 1e-30  # greatest magnitude of a row from which a scale is made: a row of zeros has a scale, too


def quantise(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """x [..., dim] -> stored [..., dim] in int8 or float8_e4m3fn, scale [...] float32. What is not finite counts as 0."""
    x = x.float().nan_to_num(0.0, 0.0, 0.0)
    greatest = 127.0 if dtype is torch.int8 else torch.finfo(dtype).max
    scale = x.abs().amax(-1).clamp_min(SMALLEST) / greatest
    scaled = (x / scale.unsqueeze(-1)).clamp(-greatest, greatest)
    return ((scaled + 0.5).floor() if dtype is torch.int8 else scaled).to(dtype), scale


def dequantise(stored: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """-> float32, the shape of `stored`."""
    return stored.float() * scale.unsqueeze(-1)
