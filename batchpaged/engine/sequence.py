"""A sequence: one prompt, its continuation, and where its keys and values lie."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

import numpy as np

from batchpaged.engine.grammar import Grammar
from batchpaged.engine.sampling_params import SamplingParams

FinishReason = Literal["stop", "length"]


@dataclass(slots=True)
class TokenCounts:
    """Sums over all sequences since the engine started."""

    prefilled: int = 0  # prompt tokens computed for the first time
    cached: int = 0  # prompt tokens served from the cache
    recomputed: int = 0  # tokens computed again after a preemption
    generated: int = 0
    forced: int = 0  # of these, tokens that a grammar left no choice about: no step chose them


class Status(Enum):
    WAITING = "waiting"  # holds no blocks
    RUNNING = "running"  # holds the blocks of `block_table`
    FINISHED = "finished"  # holds no blocks


@dataclass(eq=False, slots=True)
class Sequence:
    """One prompt and its continuation.

    The scheduler alone changes a sequence. Keys and values of tokens [0, num_computed_tokens) lie in
    the slots of `block_table`, in order.
    """

    seq_id: int
    token_ids: list[int]  # prompt, then generated tokens
    num_prompt_tokens: int
    params: SamplingParams
    seed: int  # the row's own
    adapter: str | None = None  # identity of its LoRA adapter; None: the base model
    grammar: Grammar | None = None  # what the completion must follow; it has accepted what was generated
    status: Status = Status.WAITING
    block_table: list[int] = field(default_factory=list)  # block ids, in order of position
    num_pending_tokens: int = 0  # sampled by steps that have started, and not known yet; they follow those of `token_ids`
    num_computed_tokens: int = 0  # keys and values that lie in the cache once all steps that have started are done
    num_forced_tokens: int = 0  # the last ones, which its grammar forced after the newest that a step chose
    num_cached_blocks: int = 0  # leading blocks of the table that the prefix cache can find; never written again
    is_private: bool = False  # a hash collision: nothing beyond num_cached_blocks can be cached
    block_hashes: list[bytes] = field(default_factory=list)  # of its leading full blocks, as far as anybody asked
    waits_for: "Sequence | None" = None  # is prefilling tokens that this one would compute again
    num_awaited_tokens: int = 0  # how many, where it waits
    # What FutureUses knows of it.
    place: int | None = None  # in the queue; None unless it waits
    successor: "Sequence | None" = None  # the next in planned order, if that one leaves it inside a block
    copied_index: int = 0  # in the block table: the block that the successor copies slots of
    copy_source: int | None = None  # block kept because this one, waiting, will copy slots of it
    finish_reason: FinishReason | None = None
    stop_index: int | None = None  # length in characters of the completion, when a stop string ended it
    prompt_array: np.ndarray | None = None  # int32 [num_prompt_tokens], for fast comparison
    sort_key: bytes = b""  # adapter and prompt in bytes that sort as they do
    # Accounting: every prompt token is counted once, as cached or as prefilled, when it first enters the cache.
    num_known_tokens: int = 0  # most tokens that were ever in the cache; to compute one of them again is to recompute
    num_cached_tokens: int = 0
    num_prefilled_tokens: int = 0
    num_recomputed_tokens: int = 0  # after a preemption; never counted as cached
    num_preemptions: int = 0

    def __post_init__(self) -> None:
        self.prompt_array = np.asarray(self.token_ids[: self.num_prompt_tokens], dtype=np.int32)
        self.sort_key = (self.adapter or "").encode() + self.prompt_array.astype(">i4").tobytes()

    def num_common(self, other: "Sequence") -> int:
        """Leading prompt tokens that both share; none where their adapters differ, and with them keys and values."""
        return common_prefix_length(self.prompt_array, other.prompt_array) if self.adapter == other.adapter else 0

    @property
    def num_tokens(self) -> int:
        """Those that are not known yet among them."""
        return len(self.token_ids) + self.num_pending_tokens

    @property
    def num_generated_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        return self.num_tokens - self.num_computed_tokens

    @property
    def is_prefilling(self) -> bool:
        """More than the newest token, and those forced after it, is missing from the cache."""
        num_missing = self.num_uncomputed_tokens - self.num_forced_tokens
        return num_missing > 1 or self.num_computed_tokens < self.num_prompt_tokens

    @property
    def is_complete(self) -> bool:
        """It has all the tokens that it may have: nothing more is computed, though its last ones may not be known yet."""
        return self.num_tokens - self.num_prompt_tokens >= self.params.max_tokens

    @property
    def needs_known_tokens(self) -> bool:
        """Its next token cannot be chosen before all others are known."""
        return self.grammar is not None or self.params.needs_history

    @property
    def generated_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    def count_cached(self, num_tokens: int, counts: TokenCounts) -> None:
        """The cache holds the first `num_tokens` tokens without this sequence having computed them."""
        num_new = max(0, min(num_tokens, self.num_prompt_tokens) - self.num_known_tokens)
        self.num_cached_tokens += num_new
        counts.cached += num_new
        self.num_known_tokens = max(self.num_known_tokens, num_tokens)

    def count_computed(self, start: int, end: int, counts: TokenCounts) -> None:
        """Tokens [start, end) are computed in this step."""
        num_again = max(0, min(end, self.num_known_tokens) - start)
        num_new = max(0, min(end, self.num_prompt_tokens) - max(start, self.num_known_tokens))
        self.num_recomputed_tokens += num_again
        self.num_prefilled_tokens += num_new
        counts.recomputed += num_again
        counts.prefilled += num_new
        self.num_known_tokens = max(self.num_known_tokens, end)


def common_prefix_length(a: np.ndarray, b: np.ndarray) -> int:
    """Number of leading tokens that two int32 arrays share."""
    n = min(len(a), len(b))
    differing = a[:n] != b[:n]
    first = int(differing.argmax()) if n else 0
    return first if n and differing[first] else n
