"""The allocator's settings are for speed alone: all that can be told of them is that they are taken, or passed over."""

import sys

import numpy as np
import pytest

from batchpaged.engine import allocator
from batchpaged.engine.allocator import keep_freed_memory


def test_memory_is_still_to_be_had() -> None:
    keep_freed_memory()
    keep_freed_memory()
    assert np.ones(50 * 2**20, dtype=np.uint8).all()


def test_another_system_or_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_glibc(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(allocator.ctypes, "CDLL", no_glibc)
    keep_freed_memory()
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.delattr(allocator.ctypes, "CDLL")
    keep_freed_memory()
