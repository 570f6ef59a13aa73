"""What launchers know of the GPU: nothing else of it decides a configuration."""

from dataclasses import dataclass
from functools import lru_cache

import torch

KIB = 1024


@dataclass(frozen=True)
class Target:
    """A kind of GPU."""

    backend: str  # cuda | hip
    arch: int | str  # compute capability times ten, or AMD's name
    warp_size: int
    num_processors: int  # streaming multiprocessors, or compute units
    shared_memory: int  # most bytes of one program


# Those that every kernel is compiled for ahead of time; README and docs name them so.
TARGETS = {
    "sm_80": Target("cuda", 80, 32, 108, 163 * KIB),
    "sm_90": Target("cuda", 90, 32, 132, 227 * KIB),
    "sm_100": Target("cuda", 100, 32, 148, 227 * KIB),
    "gfx942": Target("hip", "gfx942", 64, 304, 64 * KIB),
}
# Whose configurations the interpreter runs.
INTERPRETED = TARGETS["sm_90"]


@lru_cache
def device_target(device: torch.device) -> Target:
    """The GPU that `device` is; on a CPU the one that the interpreter stands for."""
    if device.type == "cpu":
        return INTERPRETED
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip is not None:
        arch = properties.gcnArchName.split(":")[0]
        return Target("hip", arch, properties.warp_size, properties.multi_processor_count, 64 * KIB)
    arch = 10 * properties.major + properties.minor
    return Target("cuda", arch, 32, properties.multi_processor_count, properties.shared_memory_per_block_optin)
