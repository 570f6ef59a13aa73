"""Copies of blocks and of their first slots, in all caches at once."""

import pytest
import torch
from kernel_tensors import DEVICE, random

from batchpaged.kernels.triton.copy_blocks import reference
from batchpaged.kernels.triton.copy_blocks.launch import cache_table, copy_blocks

NO_COPIES: list[tuple[int, int, int]] = []


def caches(block_size: int) -> list[torch.Tensor]:
    """Of several types and sizes, the scales of a slot only four bytes long, one of 24 and one of 3 numbers a slot."""
    shape = (7, block_size)
    kinds = [(torch.float32, (2, 64)), (torch.float16, (2, 80)), (torch.int8, (3, 72)), (torch.float32, (1,))]
    return [random(*shape, *rest, scale=9, seed=i).to(dtype) for i, (dtype, rest) in enumerate(kinds)]


def check(tensors: list[torch.Tensor], copies: list[tuple[int, int, int]], is_chained: bool) -> None:
    expected = [tensor.clone() for tensor in tensors]
    fields = torch.tensor(copies, dtype=torch.int64, device=DEVICE).reshape(-1, 3).unbind(1)
    reference.copy_blocks(expected, *fields)
    copy_blocks(cache_table(tensors), *(field.contiguous() for field in fields), is_chained=is_chained)
    for i, (found, wanted) in enumerate(zip(tensors, expected, strict=True)):
        assert torch.equal(found, wanted), f"cache {i}"


@pytest.mark.parametrize("block_size", [8, 16, 32, 64, 128])
def test_whole_and_partial_blocks(block_size: int) -> None:
    check(caches(block_size), [(0, 4, block_size), (0, 1, 1), (6, 2, block_size - 1), (5, 3, 0)], is_chained=False)


def test_sources_are_read_before_they_are_written() -> None:
    check(caches(16), [(0, 1, 9), (1, 2, 16), (2, 0, 3)], is_chained=True)


@pytest.mark.parametrize("is_chained", [False, True])
def test_no_copies(is_chained: bool) -> None:
    check(caches(8), NO_COPIES, is_chained)


@pytest.mark.parametrize(("dtype", "numbers"), [(torch.int8, 3), (torch.float16, 3), (torch.float32, 3), (torch.float32, 4)])
def test_slots_of_any_number_of_bytes(dtype: torch.dtype, numbers: int) -> None:
    check([random(7, 8, numbers, scale=9).to(dtype)], [(0, 3, 5)], is_chained=False)


def test_blocks_far_beyond_32_bits_of_elements() -> None:
    """A cache of nearly 2**32 bytes, copied byte by byte; the system hands out only the pages that are touched."""
    cache = torch.empty(1 << 20, 16, 255, dtype=torch.int8, device=DEVICE)
    cache[-1] = 5
    cache[0] = 3
    last = torch.tensor([cache.shape[0] - 1], device=DEVICE)
    copy_blocks(cache_table([cache]), torch.zeros_like(last), last, torch.full_like(last, 15), is_chained=False)
    assert (cache[-1, :15] == 3).all() and (cache[-1, 15] == 5).all()


def test_refuses_caches_of_different_blocks() -> None:
    with pytest.raises(ValueError, match="one block size"):
        cache_table([random(2, 8, 4), random(2, 16, 4)])


@pytest.mark.parametrize("wrong", [torch.arange(6)[::3], torch.arange(2, dtype=torch.int32)], ids=["apart", "int32"])
def test_refuses_numbers_that_it_would_read_as_others(wrong: torch.Tensor) -> None:
    right = torch.arange(2, device=DEVICE)
    for place in range(3):
        numbers = [right] * 3
        numbers[place] = wrong.to(DEVICE)
        with pytest.raises(ValueError, match="contiguous int64"):
            copy_blocks(cache_table([random(6, 8, 4)]), *numbers, is_chained=False)
