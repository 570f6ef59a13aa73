"""Compiles every kernel's examples for one target, without a GPU, and reads what the compilers say about them.

Runs in a process of its own, `python -m batchpaged.kernels.triton.ahead_of_time TARGET DTYPE`: what triton.jit makes depends on
TRITON_INTERPRET at import. Prints a JSON list of `Compiled` to stdout.
"""

import io
import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from typing import Any

import torch
import triton
from triton import knobs
from triton.backends.compiler import GPUTarget

from batchpaged.kernels.triton.launching import Launch, record
from batchpaged.kernels.triton.registry import examples
from batchpaged.kernels.triton.targets import TARGETS, Target

# What a matrix instruction's name begins with, in PTX and in AMD's assembly.
INSTRUCTIONS = {"wgmma": r"\bwgmma\.mma", "tcgen05": r"\btcgen05\.mma", "mma": r"\bmma\.sync", "mfma": r"\bv_mfma"}


@dataclass(frozen=True)
class Compiled:
    """What one kernel takes on one target."""

    target: str
    example: str  # folder and name of the example
    function: str  # a launcher may start several
    num_warps: int
    registers: int  # of a thread
    spilled: int  # bytes of a thread (NVIDIA), registers (AMD)
    shared_memory: int  # bytes of a program
    instructions: tuple[str, ...]  # matrix instructions that occur


class _Driver:
    """Stands in for a GPU's driver: the compiler asks for the target, and nothing is launched."""

    def __init__(self, target: Target) -> None:
        self._target = GPUTarget(target.backend, target.arch, target.warp_size)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def compile_examples(target_name: str, dtype: torch.dtype) -> Iterator[Compiled]:
    """The cache must be empty: compilers say nothing about what they do not compile."""
    target = TARGETS[target_name]
    logs: dict[str, str] = {}
    triton.runtime.driver.set_active(_Driver(target))
    knobs.nvidia.dump_ptxas_log = True
    for folder, example in examples():
        with record(target) as launches:
            example.call(dtype)
        for launch in launches:
            yield _compile(target_name, f"{folder}: {example.name}", launch, logs)


def _compile(target_name: str, example: str, launch: Launch, logs: dict[str, str]) -> Compiled:
    """`logs`: what the compiler has said, by kernel: in some types two examples are one kernel, which is compiled once."""
    said = io.StringIO()
    with redirect_stdout(said):
        kernel = launch.kernel.warmup(*launch.args, grid=(1,), **launch.options)
    log = logs.setdefault(kernel.hash, said.getvalue())
    is_amd = TARGETS[target_name].backend == "hip"
    assembly = kernel.asm["amdgcn" if is_amd else "ptx"]
    registers, spilled = _amd_registers(assembly) if is_amd else _nvidia_registers(log)
    return Compiled(
        target=target_name,
        example=example,
        function=launch.kernel.__name__,
        num_warps=kernel.metadata.num_warps,
        registers=registers,
        spilled=spilled,
        shared_memory=kernel.metadata.shared,
        instructions=tuple(name for name, pattern in INSTRUCTIONS.items() if re.search(pattern, assembly)),
    )


def _nvidia_registers(log: str) -> tuple[int, int]:
    """-> registers, bytes spilled, from what `ptxas -v` says. Raises RuntimeError."""
    if not log.strip():
        raise RuntimeError("ptxas said nothing: the kernel came out of a cache; TRITON_CACHE_DIR must name an empty folder")
    spilled = _number(log, r"(\d+) bytes spill stores") + _number(log, r"(\d+) bytes spill loads")
    return _number(log, r"Used (\d+) registers"), spilled


def _amd_registers(assembly: str) -> tuple[int, int]:
    """-> vector registers, registers spilled, from the metadata at the end of the assembly."""
    spilled = _number(assembly, r"\.vgpr_spill_count:\s*(\d+)") + _number(assembly, r"\.sgpr_spill_count:\s*(\d+)")
    return _number(assembly, r"\.vgpr_count:\s*(\d+)"), spilled


def _number(text: str, pattern: str) -> int:
    found = re.search(pattern, text)
    if found is None:
        raise RuntimeError(f"the compiler's report has no {pattern!r}: {text[-300:]!r}")
    return int(found[1])


def main(target_name: str, dtype_name: str, write: Callable[[str], Any] = sys.stdout.write) -> None:
    write(json.dumps([asdict(compiled) for compiled in compile_examples(target_name, getattr(torch, dtype_name))]))


if __name__ == "__main__":
    main(*sys.argv[1:])
