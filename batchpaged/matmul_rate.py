"""How fast this machine's cores multiply matrices: the floor of what inference on them can take."""

import time
from dataclasses import dataclass

import numpy as np
import torch

from batchpaged.engine.build import default_num_threads


@dataclass(frozen=True)
class MatmulRate:
    """Of large float32 matrix products on this machine's cores, FLOP per second."""

    sustained: float  # the median of a second's products: what a run of many seconds can have
    best: float  # of a single one, with all the clock speed that cores have for moments


def measure_matmul_rate(size: int = 1536, seconds: float = 1.0) -> MatmulRate:
    torch.set_num_threads(default_num_threads(1))
    a, b = torch.randn(size, size), torch.randn(size, size)
    rates, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or not rates:
        started = time.perf_counter()
        a @ b
        rates.append(2.0 * size**3 / (time.perf_counter() - started))
    return MatmulRate(float(np.median(rates)), max(rates))
