"""The one interface behind which attention backends stand."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol

import torch

from batchpaged.engine.step import BlockCopy, StepPlan


@dataclass(frozen=True)
class AttentionParams:
    """What a model asks of one attention call."""

    scaling: float
    sliding_window: int | None  # a query sees this many newest positions, itself included
    softcap: float | None  # scores become softcap * tanh(score / softcap)
    sinks: torch.Tensor | None  # [num_heads]: a logit per head that takes part in the softmax and carries no value


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
        share = self._bits.index_select(self.axis, blocks).movedim(self.axis, 0)
        return share.reshape(len(blocks), -1).view(torch.uint8)

    def write(self, blocks: torch.Tensor, content: torch.Tensor) -> None:
        """blocks int64 [n], content uint8 [n, block_bytes]"""
        bits = self._bits
        shape = [len(blocks), *(size for axis, size in enumerate(bits.shape) if axis != self.axis)]
        bits.index_copy_(self.axis, blocks, content.contiguous().view(bits.dtype).view(shape).movedim(0, self.axis))

    @property
    def _bits(self) -> torch.Tensor:
        """Torch has no indexed operations for float8."""
        return self.tensor.view(torch.uint8) if self.tensor.dtype is torch.float8_e4m3fn else self.tensor


class AttentionBackend(Protocol):
    """Owns the KV cache of all layers. `begin` once per step, then `attend` once per layer."""

    num_blocks: int  # of the KV cache
    block_size: int  # slots per block

    def copy(self, copies: tuple[BlockCopy, ...]) -> None:
        """Copy leading slots of blocks, in all layers; reads all sources before it writes any target."""

    def parts(self) -> list[BlockPart]:
        """All tensors that hold keys and values, or what belongs to them, of all layers."""

    def begin(self, plan: StepPlan) -> None:
        """Prepare what all layers of this step share."""

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, params: AttentionParams
    ) -> torch.Tensor:
        """Store the step's keys and values, then attend.

        query [num_heads, num_tokens, head_dim], key and value [num_kv_heads, num_tokens, head_dim or value_dim]
        -> [num_tokens, num_heads, value_dim].
        """


class StaticBackend(AttentionBackend, Protocol):
    """One whose decode steps can be captured in a CUDA graph."""

    def begin_static(self, plan: StepPlan) -> Hashable:
        """As `begin`, for a step in which every sequence has one query.

        What `attend` then reads lies in tensors that stay where they are: steps for which the same value is returned differ in
        their numbers alone, so what was captured in one can be replayed in another.
        """
