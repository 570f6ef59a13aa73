"""Host memory and disk below an engine's KV cache: how much of them, and what they cost on this machine."""

import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from batchpaged.config.sizes import format_bytes
from batchpaged.engine.cache_sizes import free_disk, free_memory, num_places
from batchpaged.engine.model_runner import ModelRunner
from batchpaged.engine.step import SequenceStep, StepPlan
from batchpaged.errors import ModelError
from batchpaged.tiers.costs import TierCosts
from batchpaged.tiers.disk import DiskSlots
from batchpaged.tiers.frames import HostFrames
from batchpaged.tiers.store import TierStore

if TYPE_CHECKING:
    from batchpaged.config import EngineConfig

MEASURED_BLOCKS = 8  # at most, of which the measurements are a mean
MEASURED_TOKENS = 256  # at most: enough that a step's fixed costs do not count


@dataclass(frozen=True)
class Tiers:
    """What an engine has to know of them."""

    num_frames: int = 0  # blocks of the host tier
    num_disk_slots: int = 0  # blocks of the disk tier
    costs: TierCosts | None = None


def build_tiers(runner: ModelRunner, config: "EngineConfig", num_blocks: int, max_model_len: int) -> Tiers:
    """Give the runner its lower tiers, if the pipeline wants them. Writes to the KV cache's first blocks.

    Raises ModelError or ConfigError.
    """
    if config.host_cache is None:
        return Tiers()
    parts = runner.backend.parts()
    block_bytes = sum(part.block_bytes for part in parts)
    num_frames = num_places("host_cache", config.host_cache, block_bytes, free_memory())
    try:
        frames = HostFrames(parts, num_frames)
    except (RuntimeError, OSError, MemoryError) as error:  # a GPU's driver pins it, a CPU's system may limit it
        raise ModelError(f"engine.host_cache of {format_bytes(num_frames * block_bytes)} cannot be taken; lower it") from error
    disk = _disk(config, block_bytes)
    most_tokens = min(num_blocks * config.block_size, max_model_len, config.max_batch_tokens)
    with ExitStack() as on_error:
        if disk is not None:
            on_error.callback(disk.close)
        costs = measure_costs(runner, frames, disk, most_tokens, config.block_size)
        on_error.pop_all()
    runner.tiers = TierStore(frames, disk, costs)
    return Tiers(num_frames, disk.num_slots if disk is not None else 0, costs)


def _disk(config: "EngineConfig", block_bytes: int) -> DiskSlots | None:
    if config.disk_cache is None:
        return None
    folder = Path(config.disk_cache_path or tempfile.gettempdir())
    try:
        num_slots = num_places("disk_cache", config.disk_cache, block_bytes, free_disk(config.disk_cache_path))
        return DiskSlots(folder, num_slots, block_bytes)
    except OSError as error:
        raise ModelError(f"engine.disk_cache_path: {folder} takes no file: {error.strerror}") from error


def measure_costs(
    runner: ModelRunner, frames: HostFrames, disk: DiskSlots | None, most_tokens: int, block_size: int
) -> TierCosts:
    """`most_tokens`: that a prompt's step can have."""
    num_tokens = min(MEASURED_TOKENS, most_tokens)
    num_moved = min(MEASURED_BLOCKS, len(frames.rows), -(-num_tokens // block_size))
    blocks = list(range(num_moved))
    rows = list(frames.rows[:num_moved])
    save = _seconds(lambda: frames.save(blocks, blocks))
    load = _seconds(lambda: frames.load(rows, blocks))
    step = _seconds(lambda: runner.logits(_prefill(num_tokens, block_size), [num_tokens - 1]))
    costs = TierCosts(step / num_tokens, save / num_moved, load / num_moved)
    if disk is not None:
        costs.read = _disk_seconds(disk, rows[0])
    return costs


def _disk_seconds(disk: DiskSlots, row: torch.Tensor) -> float:
    """To read one block."""
    try:
        disk.write(0, row.numpy())
    except OSError as error:
        raise ModelError(f"engine.disk_cache: its file cannot be written: {error.strerror}") from error
    return _seconds(lambda: disk.read(0, torch.empty_like(row).numpy()))


def _seconds(do: Callable[[], object]) -> float:
    """The shorter of two tries, the first of which may have to get memory first."""
    return min(_timed(do), _timed(do))


def _timed(do: Callable[[], object]) -> float:
    begun = time.perf_counter()
    do()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter() - begun


def _prefill(num_tokens: int, block_size: int) -> StepPlan:
    """A prompt of token 0 alone."""
    places, table = tuple(range(num_tokens)), tuple(range(-(-num_tokens // block_size)))
    return StepPlan((0,) * num_tokens, places, places, (SequenceStep(0, num_tokens, num_tokens, table, None),), ())
