"""The one door to a kernel, so that what a launcher would start can also be recorded, for the ahead-of-time check."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch

from batchpaged.kernels.triton.targets import Target, device_target

MAX_GRID_YZ = 65_535  # of CUDA, in the grid's second and third dimension; the first takes 2**31 - 1


@dataclass(frozen=True)
class Launch:
    """What a launcher would have started."""

    kernel: Any  # the function under triton.jit
    args: tuple[Any, ...]
    options: dict[str, Any]  # constants, num_warps, num_stages


@dataclass(frozen=True)
class Example:
    """A call of a launcher, on tensors without memory, that is compiled ahead of time for each target."""

    name: str
    call: Callable[[torch.dtype], object]


_recording: ContextVar[tuple[Target, list[Launch]] | None] = ContextVar("batchpaged_recording", default=None)


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
    """Start `kernel` on the current GPU, which must be that of the tensors; an empty grid starts nothing."""
    if any(size > MAX_GRID_YZ for size in grid[1:]):
        raise ValueError(f"a grid of {grid} is too large in its second or third dimension")
    recording = _recording.get()
    if recording is not None:
        recording[1].append(Launch(kernel, args, options))
    elif 0 not in grid:
        kernel[grid](*args, **options)


def target_of(tensor: torch.Tensor) -> Target:
    """The GPU on which a launch on this tensor runs; heuristics ask nothing else."""
    recording = _recording.get()
    return recording[0] if recording is not None else device_target(tensor.device)


@contextmanager
def record(target: Target) -> Iterator[list[Launch]]:
    """Inside the block launchers believe to be on `target`, and start nothing: their launches go into the list."""
    launches: list[Launch] = []
    token = _recording.set((target, launches))
    try:
        yield launches
    finally:
        _recording.reset(token)


def without_memory(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """A contiguous tensor for examples."""
    return torch.empty(shape, dtype=dtype, device="meta")


def check(is_right: bool, message: str) -> None:
    """Launchers refuse what their kernel cannot take."""
    if not is_right:
        raise ValueError(message)
