"""A block's share of the tensors that a KV cache consists of, whatever their layout and type."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class BlockPart:
    """A tensor of a KV cache, of which every block has a share: one step along `axis`."""

    tensor: torch.Tensor
    axis: int

    @property
    def block_bytes(self) -> int:
        return self.tensor.nbytes // self.tensor.shape[self.axis]

    def read(self, blocks: torch.Tensor) -> torch.Tensor:
        """blocks int64 [n] -> uint8 [n, block_bytes]"""
        share = bits_of(self.tensor).index_select(self.axis, blocks).movedim(self.axis, 0)
        return share.reshape(len(blocks), -1).view(torch.uint8)

    def write(self, blocks: torch.Tensor, content: torch.Tensor) -> None:
        """blocks int64 [n], content uint8 [n, block_bytes]"""
        bits = bits_of(self.tensor)
        shape = [len(blocks), *(size for axis, size in enumerate(bits.shape) if axis != self.axis)]
        bits.index_copy_(self.axis, blocks, content.contiguous().view(bits.dtype).view(shape).movedim(0, self.axis))


def bits_of(x: torch.Tensor) -> torch.Tensor:
    """Torch has no indexed operations for float8."""
    return x.view(torch.uint8) if x.dtype is torch.float8_e4m3fn else x
