"""Times of work on a device."""

import time
from collections.abc import Callable
from statistics import median

import torch


def synchronize(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def seconds(function: Callable[[], object], device: str, num_trials: int = 20) -> float:
    """The median of some calls, by the device's own clock where it has one; two calls before that warm up."""
    for _ in range(2):
        function()
    return median(_one(function, device) for _ in range(num_trials if device != "cpu" else 2))


def _one(function: Callable[[], object], device: str) -> float:
    if device == "cpu":
        started = time.perf_counter()
        function()
        return time.perf_counter() - started
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    function()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3
