import subprocess
import sys

import batchpaged

NAMES = [
    "BatchpagedError",
    "Generation",
    "PlanReport",
    "RefusedError",
    "RunResult",
    "RunStatus",
    "UnfinishedError",
    "Validation",
    "generate",
    "kv_cache_bytes",
    "plan",
    "run",
    "status",
    "validate",
]


def test_exactly_these_names_are_public_and_sorted():
    assert batchpaged.__all__ == NAMES
    assert dir(batchpaged) == NAMES


def test_every_public_name_is_there():
    for name in NAMES:
        assert callable(getattr(batchpaged, name)), name


def test_run_is_callable_whatever_is_imported_first():
    for first in ("batchpaged.run.progress", "batchpaged.api", "batchpaged"):
        code = f"import {first}; import batchpaged; assert callable(batchpaged.run); import batchpaged.run.directory as d; d.RunDirectory"
        subprocess.run([sys.executable, "-c", code], check=True)


def test_importing_the_package_loads_nothing_heavy():
    code = "import sys, batchpaged; assert not {'torch', 'transformers', 'distributed', 'pyarrow'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
