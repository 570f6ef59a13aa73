"""Kernels, their folders, and machines without triton."""

import subprocess
import sys
from pathlib import Path

import batchpaged.kernels.triton as package
from batchpaged.kernels.triton.registry import KERNELS, examples

BLOCKED = """
import sys
sys.modules["triton"] = None  # any import of it fails
import batchpaged.engine.build, batchpaged.cluster.engine_worker, batchpaged.cli
"""


def test_every_folder_is_registered_with_kernel_launcher_reference_and_examples() -> None:
    root = Path(package.__file__).parent
    assert sorted(KERNELS) == sorted(path.parent.name for path in root.glob("*/kernel.py"))
    for name in KERNELS:
        assert all((root / name / part).is_file() for part in ("launch.py", "reference.py"))
    assert {folder for folder, _ in examples()} == set(KERNELS)


def test_every_folder_is_part_of_the_wheel() -> None:
    settings = Path(__file__).parents[3].joinpath("pyproject.toml").read_text()
    for name in KERNELS:
        package_line, folder_line = f'  "batchpaged.kernels.triton.{name}",', f'"batchpaged.kernels.triton.{name}" = '
        assert package_line in settings and f'{folder_line}"kernels/triton/{name}"' in settings


def test_nothing_outside_the_kernels_imports_triton() -> None:
    done = subprocess.run([sys.executable, "-c", BLOCKED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
