"""Every kernel compiles without a GPU, and takes no more than its target has."""

import pytest

from batchpaged.kernels.triton.compile_check import compile_for, markdown, problems

# The two compilers, and the target that configurations are chosen for; the command checks all four.
TARGETS = ("sm_90", "gfx942")


@pytest.mark.parametrize("target", TARGETS)
def test_kernels_compile_within_the_limits_of(target: str) -> None:
    compiled = compile_for(target)
    assert problems(compiled) == []
    assert all(record["registers"] > 0 for record in compiled)
    assert len(markdown(compiled).splitlines()) == len(compiled) + 2


def test_limits_are_noticed() -> None:
    record = {"target": "sm_90", "example": "one", "function": "f", "spilled": 4, "shared_memory": 227 * 1024 + 1}
    over = problems([record, record | {"target": "gfx942"}, record | {"spilled": 0, "shared_memory": 227 * 1024}])
    assert len(over) == 3
    assert "spills" in over[1]
