"""All that crosses from scheduler to model runner, and back."""

from dataclasses import dataclass

from batchpaged.engine.grammar import Grammar
from batchpaged.engine.sampling_params import SamplingParams


@dataclass(frozen=True)
class BlockCopy:
    """Copy the first `num_slots` slots of block `source` to block `target`, in every layer."""

    source: int
    target: int
    num_slots: int


@dataclass(frozen=True)
class SampleRequest:
    """Choose the token that follows a sequence's last one."""

    params: SamplingParams
    seed: int  # the row's own
    num_tokens: int  # of the sequence so far: the position that the new token takes
    token_ids: tuple[int, ...] | None  # prompt and completion so far; only where a penalty needs them
    grammar: Grammar | None = None  # says which tokens are allowed; it changes only once this token is known


@dataclass(frozen=True)
class SequenceStep:
    """One sequence's share of a step: tokens [context_length - query_length, context_length)."""

    seq_id: int
    query_length: int  # tokens computed in this step
    context_length: int  # tokens in the cache once the step is done
    block_table: tuple[int, ...]  # covers context_length tokens
    sample: SampleRequest | None  # None while a chunk of the prompt is still missing
    adapter: str | None = None  # identity of the LoRA adapter that its tokens are computed with


@dataclass(frozen=True)
class PendingToken:
    """A token that the step before this one samples; where steps are planned ahead, its id is not known yet."""

    index: int  # in the step's token axis
    seq_id: int  # of the sequence that it was sampled for


@dataclass(frozen=True)
class StepPlan:
    """A step's complete input. Tokens of all sequences lie one after another, in the order of `sequences`.

    Copies come first: all sources are read before any target or slot is written.
    """

    token_ids: tuple[int | None, ...]  # [num_tokens]; None for pending tokens
    positions: tuple[int, ...]  # [num_tokens]
    slots: tuple[int, ...]  # [num_tokens], block id * block_size + offset
    sequences: tuple[SequenceStep, ...]
    copies: tuple[BlockCopy, ...]
    pending: tuple[PendingToken, ...] = ()

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)
