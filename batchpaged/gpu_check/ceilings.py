"""What the card can do at best, measured: the two rates that everything else is compared with."""

from dataclasses import dataclass

import torch

from batchpaged.gpu_check.sizes import Sizes
from batchpaged.gpu_check.timing import seconds
from batchpaged.kernels.triton.linear.launch import linear


@dataclass(frozen=True)
class Ceilings:
    flops: float  # of a large matrix product, per second
    bytes: float  # of a large copy, read and written, per second
    ordered_flops: float  # of the same product by the kernel whose bits do not depend on the batch


def measure_ceilings(sizes: Sizes, device: str) -> Ceilings:
    a, b = (torch.randn(sizes.matmul, sizes.matmul, device=device).to(sizes.dtype) for _ in range(2))
    product = torch.empty_like(a)
    source = torch.randint(256, (sizes.copy_bytes,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return Ceilings(
        flops=2 * sizes.matmul**3 / seconds(lambda: torch.matmul(a, b, out=product), device),
        bytes=2 * sizes.copy_bytes / seconds(lambda: target.copy_(source), device),
        ordered_flops=2 * sizes.matmul**3 / seconds(lambda: linear(a, b), device),
    )
