"""A decode step's block tables in tensors that stay where they are, so that a CUDA graph can read them in step after step."""

from dataclasses import dataclass

import numpy as np
import torch

from batchpaged.attention.batches import MAX_BATCH_SLOTS
from batchpaged.attention.upload import upload
from batchpaged.engine.step import StepPlan


@dataclass(frozen=True)
class StaticShape:
    """Two steps with one shape read the same tensors."""

    num_sequences: int
    num_blocks: int  # of each sequence's table, padded


@dataclass(frozen=True)
class StaticDecode:
    """One decode step of B sequences, each attending to its whole context by itself; N blocks, padded with block 0."""

    slots: torch.Tensor  # int64 [B]
    blocks: torch.Tensor  # int64 [B, N]
    lengths: torch.Tensor  # int64 [B], tokens of each context

    @staticmethod
    def empty(shape: StaticShape, device: str) -> "StaticDecode":
        sizes = ((shape.num_sequences,), (shape.num_sequences, shape.num_blocks), (shape.num_sequences,))
        return StaticDecode(*(torch.zeros(size, dtype=torch.int64, device=device) for size in sizes))

    def fill(self, plan: StepPlan) -> None:
        """Overwrite what the step before left; its work, if it still runs, comes first in the device's stream."""
        blocks = np.zeros(self.blocks.shape, dtype=np.int64)
        for row, step in enumerate(plan.sequences):
            blocks[row, : len(step.block_table)] = step.block_table
        lengths = [step.context_length for step in plan.sequences]
        for tensor, values in ((self.slots, plan.slots), (self.blocks, blocks), (self.lengths, lengths)):
            tensor.copy_(upload(values, tensor.device), non_blocking=True)

    def chunks(self, block_size: int) -> list[slice]:
        """Sequences to attend at a time: what is gathered for them is bounded, as in any other step."""
        size = max(1, MAX_BATCH_SLOTS // (self.blocks.shape[1] * block_size))
        return [slice(at, at + size) for at in range(0, len(self.blocks), size)]


def static_shape(plan: StepPlan) -> StaticShape:
    """The longest table rounded up to 1, 2, 3, 4, 6, 8, 12, 16 ..., so that few shapes occur."""
    longest = max(len(step.block_table) for step in plan.sequences)
    power = 1 << (longest - 1).bit_length()
    return StaticShape(len(plan.sequences), power * 3 // 4 if longest <= power * 3 // 4 else power)
