"""All that crosses from scheduler to model runner, and back."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from batchpaged.engine.grammar import Grammar
from batchpaged.engine.sampling_params import SamplingParams


@dataclass(frozen=True)
class BlockCopy:
    """Copy the first `num_slots` slots of block `source` to block `target`, in every layer."""

    source: int
    target: int
    num_slots: int


class MoveKind(Enum):
    """From where to where; see memory_tiers.py."""

    SAVE = "save"  # block of the pool -> frame, a place in host memory
    LOAD = "load"  # frame -> block
    WRITE = "write"  # frame -> slot, a place on disk
    READ = "read"  # slot -> frame
    LOAD_FROM_DISK = "load from disk"  # slot -> block


@dataclass(frozen=True)
class BlockMove:
    """A whole block goes from one tier to another."""

    kind: MoveKind
    source: int
    target: int


@dataclass(frozen=True)
class SampleRequest:
    """Choose the token that follows a sequence's last one."""

    params: SamplingParams
    seed: int  # the row's own
    num_tokens: int  # of the sequence so far: the position that the new token takes
    token_ids: tuple[int, ...] | None  # prompt and completion so far; only where a penalty needs them
    grammar: Grammar | None = None  # says which tokens are allowed; it changes only once this token is known
    num_top: int | None = None  # most likely tokens whose log-probabilities are wanted beside the chosen one's; None: none


@dataclass(frozen=True)
class PromptRequest:
    """Log-probabilities of prompt tokens, each given all before it: kept beside keys and values, in the token's own slot.

    The i-th token computed in this step predicts the i-th one here.
    """

    num_top: int  # most likely tokens beside the prompt's own
    token_ids: tuple[int, ...]  # of the prompt, from the one after the first computed in this step
    slots: tuple[int, ...]  # theirs
    wanted: tuple[int, ...] | None  # slots of all prompt tokens but the first, once the prompt is computed: fetch these


@dataclass(frozen=True)
class SequenceStep:
    """One sequence's share of a step: tokens [context_length - query_length, context_length)."""

    seq_id: int
    query_length: int  # tokens computed in this step
    context_length: int  # tokens in the cache once the step is done
    block_table: tuple[int, ...]  # covers context_length tokens
    sample: SampleRequest | None  # None while a chunk of the prompt is still missing
    adapter: str | None = None  # identity of the LoRA adapter that its tokens are computed with
    prompt: PromptRequest | None = None
    # (seq_id, request) of sequences that part from this one: they take their first token from the same logits.
    forks: tuple[tuple[int, SampleRequest], ...] = ()


@dataclass(frozen=True)
class PendingToken:
    """A token that the step before this one samples; where steps are planned ahead, its id is not known yet."""

    index: int  # in the step's token axis
    seq_id: int  # of the sequence that it was sampled for


@dataclass(frozen=True)
class StepPlan:
    """A step's complete input. Tokens of all sequences lie one after another, in the order of `sequences`.

    First the moves, in their order; then copies: all sources are read before any target or slot is written; then loads.
    """

    token_ids: tuple[int | None, ...]  # [num_tokens]; None for pending tokens
    positions: tuple[int, ...]  # [num_tokens]
    slots: tuple[int, ...]  # [num_tokens], block id * block_size + offset
    sequences: tuple[SequenceStep, ...]
    copies: tuple[BlockCopy, ...]
    pending: tuple[PendingToken, ...] = ()
    moves: tuple[BlockMove, ...] = ()  # out of the pool, and between host memory and disk
    loads: tuple[BlockMove, ...] = ()  # into the pool

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True)
class TokenLogprobs:
    """Natural logarithms of probabilities, of n tokens: the model's own, before temperature, penalties and filters."""

    logprobs: np.ndarray  # float32 [n], of the tokens that are there
    ranks: np.ndarray  # int32 [n]; 1: the most likely token
    top_ids: np.ndarray  # int32 [n, num_top], the most likely tokens, best first
    top_logprobs: np.ndarray  # float32 [n, num_top]

    def row(self, index: int) -> "TokenLogprobs":
        """One of them, n = 1."""
        at = slice(index, index + 1)
        return TokenLogprobs(self.logprobs[at], self.ranks[at], self.top_ids[at], self.top_logprobs[at])


def join_logprobs(parts: "list[TokenLogprobs]") -> TokenLogprobs:
    """Of at least one."""
    columns = zip(*((p.logprobs, p.ranks, p.top_ids, p.top_logprobs) for p in parts), strict=True)
    return TokenLogprobs(*map(np.concatenate, columns))


@dataclass(frozen=True)
class Sampled:
    """What comes back from a step, by seq_id."""

    token_ids: Mapping[int, int]
    logprobs: Mapping[int, TokenLogprobs] = field(default_factory=dict)  # n = 1, where they are wanted
    prompt_logprobs: Mapping[int, TokenLogprobs] = field(default_factory=dict)  # n = prompt tokens - 1
