"""How a function of static buffers is run again: as it is, or as a CUDA graph."""

import logging
from collections.abc import Callable
from typing import Protocol

import torch

# Runs of a function before it is captured, which takes as long as a few of them: the first one also compiles and allocates what
# the function needs.
RUNS_BEFORE_CAPTURE = 4

Function = Callable[[], torch.Tensor]
_log = logging.getLogger(__name__)


class Replay(Protocol):
    def __call__(self) -> torch.Tensor:
        """Compute the function on what lies in its buffers now. The result counts until anything is replayed again."""


class PlainReplay:
    """The function itself, on any device."""

    def __init__(self, function: Function) -> None:
        self._function = function

    def __call__(self) -> torch.Tensor:
        return self._function()


class CudaGraphs:
    """Makes replays that are CUDA graphs; as they never run at the same time, they share their memory.

    Where a model cannot be captured, because it waits for the GPU in the middle of a step, all run plainly from then on.
    """

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._can_capture = True

    def __call__(self, function: Function) -> "GraphReplay":
        return GraphReplay(function, self._capture)

    def _capture(self, function: Function) -> "tuple[torch.cuda.CUDAGraph, torch.Tensor] | None":
        """-> the graph and where its result will lie; nothing is computed yet."""
        if not self._can_capture:
            return None
        graph = torch.cuda.CUDAGraph()
        try:
            # Other threads of the process are none of the capture's business.
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                output = function()
        except RuntimeError as error:
            self._can_capture = False
            _log.warning("decode steps run without CUDA graphs: %s", str(error).partition("\n")[0])
            return None
        return graph, output


class GraphReplay:
    """The first calls run the function, the next one captures it for all others."""

    def __init__(
        self, function: Function, capture: "Callable[[Function], tuple[torch.cuda.CUDAGraph, torch.Tensor] | None]"
    ) -> None:
        self._function = function
        self._capture = capture
        self._num_runs = 0
        self._captured: tuple[torch.cuda.CUDAGraph, torch.Tensor] | None = None

    def __call__(self) -> torch.Tensor:
        if self._captured is None and self._num_runs >= RUNS_BEFORE_CAPTURE:
            self._captured = self._capture(self._function)
        if self._captured is None:
            self._num_runs += 1
            return self._function()
        graph, output = self._captured
        graph.replay()
        return output
