"""Every kernel compiled ahead of time for every target: `python -m batchpaged.kernels.triton.compile_check`.

Needs no GPU. Prints a Markdown table, and ends with exit code 1 if a kernel needs more shared memory than the target has, or spills
registers where that is not allowed.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from batchpaged.kernels.triton.targets import KIB, TARGETS

# Where no kernel may spill: the target that configurations are chosen for.
NO_SPILLS = ("sm_90",)
MODULE = "batchpaged.kernels.triton.ahead_of_time"
HEADER = ("Kernel", "Target", "Warps", "Registers", "Spilled", "Shared memory (KiB)", "Matrix instructions")


def compile_for(target: str, dtype: str = "bfloat16") -> list[dict]:
    """`Compiled` records of ahead_of_time, from a clean process with an empty cache. Raises RuntimeError."""
    with tempfile.TemporaryDirectory(prefix="batchpaged-triton-") as cache:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("TRITON_")}
        environment |= {"TRITON_CACHE_DIR": cache, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, "-m", MODULE, target, dtype]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{target}: the compiler ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return json.loads(done.stdout)


def problems(compiled: list[dict]) -> list[str]:
    """What is over a limit, in words."""
    found = []
    for record in compiled:
        name, limit = f"{record['example']} ({record['function']})", TARGETS[record["target"]].shared_memory
        if record["shared_memory"] > limit:
            found.append(f"{record['target']}: {name} needs {record['shared_memory']} bytes of shared memory, of {limit}")
        if record["spilled"] and record["target"] in NO_SPILLS:
            found.append(f"{record['target']}: {name} spills {record['spilled']} bytes of registers")
    return found


def markdown(compiled: list[dict]) -> str:
    rows = [HEADER, ("---",) * len(HEADER), *map(_cells, sorted(compiled, key=lambda record: record["example"]))]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cells(record: dict) -> tuple[str, ...]:
    return (
        record["example"],
        record["target"],
        str(record["num_warps"]),
        str(record["registers"]),
        str(record["spilled"]),
        f"{record['shared_memory'] / KIB:.1f}",
        ", ".join(record["instructions"]) or "none",
    )


@click.command()
@click.option("--target", "targets", multiple=True, type=click.Choice(list(TARGETS)), help="Only these; default: all.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the records to a file, too.")
def main(targets: tuple[str, ...], json_file: Path | None) -> None:
    """Compile every kernel for every target, and check what they take."""
    compiled = [record for target in targets or TARGETS for record in compile_for(target)]
    if json_file is not None:
        json_file.write_text(json.dumps(compiled, indent=1))
    click.echo(markdown(compiled))
    found = problems(compiled)
    for problem in found:
        click.echo(problem, err=True)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
