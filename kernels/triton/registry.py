"""All kernels, and the launches of each that are compiled ahead of time."""

from collections.abc import Iterator
from importlib import import_module

from batchpaged.kernels.triton.launching import Example

# Folders of this package; each launch.py names its EXAMPLES.
KERNELS = (
    "copy_blocks", "gated", "linear", "merge_partials", "paged_attention", "rms_norm", "rope_store", "rotate", "sample", "store_kv",
)  # fmt: skip


def examples() -> Iterator[tuple[str, Example]]:
    """-> (kernel folder, example). Imports triton."""
    for name in KERNELS:
        for example in import_module(f"batchpaged.kernels.triton.{name}.launch").EXAMPLES:
            yield name, example
