"""One layer's keys or values in torch operations: as they are, or in 8 bits with a scale for each slot and head."""

import math
from typing import Literal

import torch

from batchpaged.attention.block_part import bits_of
from batchpaged.attention.memory import zeros_on_first_use
from batchpaged.kernels.triton.kv_reference import dequantise, quantise

KvDtype = Literal["auto", "int8", "fp8"]  # auto: the model's own type
EIGHT_BITS: dict[KvDtype, torch.dtype] = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}


class KvArray:
    """numbers [num_kv_heads, num_blocks, block_size, dim]; scales [num_kv_heads, num_blocks, block_size] float32 or None.

    Heads come first so that the blocks of many sequences gather, in copies of whole blocks, into one contiguous batch for a
    matrix product.
    """

    def __init__(self, shape: tuple[int, int, int, int], dtype: torch.dtype, kv_dtype: KvDtype, device: str) -> None:
        stored_as = EIGHT_BITS.get(kv_dtype)
        self.numbers = _zeros(shape, stored_as or dtype, device)
        self.scales = None if stored_as is None else _zeros(shape[:3], torch.float32, device)

    def store(self, slots: torch.Tensor, new: torch.Tensor) -> None:
        """new [num_kv_heads, num_tokens, dim] goes to slots [num_tokens], block * block_size + offset.

        What is not finite becomes 0. Slots beyond a context are read too, with weight 0: what overflowed in one row must not
        reach others that way.
        """
        if self.scales is None:
            new = new.to(self.numbers.dtype).nan_to_num(0.0, 0.0, 0.0)
        else:
            new, scale = quantise(new, self.numbers.dtype)
            self.scales.flatten(1, 2).index_copy_(1, slots, scale)
        bits_of(self.numbers).flatten(1, 2).index_copy_(1, slots, bits_of(new))

    def gather(self, blocks: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """-> [num_kv_heads, len(blocks), block_size, dim] in `dtype`"""
        numbers = bits_of(self.numbers).index_select(1, blocks).view(self.numbers.dtype)
        if self.scales is not None:
            numbers = dequantise(numbers, self.scales.index_select(1, blocks))
        return numbers.to(dtype)

    def tensors(self) -> list[torch.Tensor]:
        """[num_kv_heads, num_blocks, ...] each."""
        return [self.numbers] if self.scales is None else [self.numbers, self.scales]

    def copy(self, sources: torch.Tensor, targets: torch.Tensor) -> None:
        """Copy slots; all sources are read before a target is written."""
        for tensor in self.tensors():
            slots = bits_of(tensor).flatten(1, 2)
            slots[:, targets] = slots[:, sources]


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> torch.Tensor:
    # zeros, not empty: padding reads slots that were never written, and 0 * NaN would be NaN.
    if device != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return zeros_on_first_use(math.prod(shape) * dtype.itemsize).view(dtype).view(shape)
