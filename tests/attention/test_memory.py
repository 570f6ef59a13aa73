"""Memory of a KV cache."""

import pytest
import torch

from batchpaged.attention.memory import zeros_on_first_use


@pytest.mark.parametrize("num_bytes", [0, 1, 4096, 5 * 2**20 + 3])
def test_zeros_that_can_be_written(num_bytes: int) -> None:
    x = zeros_on_first_use(num_bytes)
    assert x.shape == (num_bytes,) and x.dtype is torch.uint8 and not x.any()
    x.fill_(7)
    assert (x == 7).all()


def test_each_has_its_own() -> None:
    first, second = zeros_on_first_use(100), zeros_on_first_use(100)
    first.fill_(1)
    assert not second.any()
