"""The one interface behind which attention backends stand."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol

import torch

from batchpaged.attention.block_part import BlockPart
from batchpaged.engine.step import BlockCopy, StepPlan


@dataclass(frozen=True)
class AttentionParams:
    """What a model asks of one attention call."""

    scaling: float
    sliding_window: int | None  # a query sees this many newest positions, itself included
    softcap: float | None  # scores become softcap * tanh(score / softcap)
    sinks: torch.Tensor | None  # [num_heads]: a logit per head that takes part in the softmax and carries no value


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
