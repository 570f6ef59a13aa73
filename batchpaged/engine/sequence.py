"""A sequence: one prompt, its continuation, and where its keys and values lie."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Literal

import numpy as np

from batchpaged.engine.grammar import Grammar
from batchpaged.engine.sampling_params import SamplingParams
from batchpaged.engine.step import TokenLogprobs

FinishReason = Literal["stop", "length"]

_PROMPT_LOGPROBS = "prompt_logprobs"


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
    num_swapped_blocks: int = 0  # leading ones of its table when it was preempted, to be used again once it comes back
    is_private: bool = False  # a hash collision: nothing beyond num_cached_blocks can be cached
    block_hashes: list[bytes] = field(default_factory=list)  # of its leading full blocks, as far as anybody asked
    waits_for: "Sequence | None" = None  # is prefilling tokens that this one would compute again
    num_awaited_tokens: int = 0  # how many, where it waits
    # Of a sequence group.
    row: int = -1  # seq_id of the group's first sequence
    forks: "tuple[Fork, ...]" = ()  # those that part from it once the prompt is computed
    beams: "BeamGroup | None" = None
    score: float | None = None  # of a finished beam
    # What FutureUses knows of it.
    place: int | None = None  # in the queue; None unless it waits
    successor: "Sequence | None" = None  # the next in planned order, if that one leaves it inside a block
    copied_index: int = 0  # in the block table: the block that the successor copies slots of
    copy_source: int | None = None  # block kept because this one, waiting, will copy slots of it
    finish_reason: FinishReason | None = None
    stop_index: int | None = None  # length in characters of the completion, when a stop string ended it
    num_top: int | None = None  # most likely tokens whose log-probabilities are wanted with each generated one; None: none
    logprobs: list[TokenLogprobs] = field(default_factory=list)  # of each generated token, where they are wanted
    prompt_logprobs: TokenLogprobs | None = None  # of all prompt tokens but the first, once they are known
    prompt_array: np.ndarray | None = None  # int32 [num_prompt_tokens], for fast comparison
    sort_key: bytes = b""  # adapter and prompt in bytes that sort as they do
    # Accounting: every prompt token is counted once, as cached or as prefilled, when it first enters the cache.
    num_known_tokens: int = 0  # most tokens that were ever in the cache; to compute one of them again is to recompute
    num_cached_tokens: int = 0
    num_earlier_tokens: int = 0  # of the cached ones: in blocks that an earlier stage computed
    num_prefilled_tokens: int = 0
    num_recomputed_tokens: int = 0  # after a preemption; never counted as cached
    num_preemptions: int = 0

    def __post_init__(self) -> None:
        if self.prompt_array is None:
            self.prompt_array = np.asarray(self.token_ids[: self.num_prompt_tokens], dtype=np.int32)
            self.sort_key = (self.root or "").encode() + self.prompt_array.astype(">i4").tobytes()
        self.row = self.seq_id if self.row < 0 else self.row

    def sibling(self, seq_id: int, seed: int, token_ids: list[int], grammar: Grammar | None = None) -> "Sequence":
        """Another sequence of its row, that runs with its blocks; they are not acquired for it yet."""
        made = Sequence(
            seq_id,
            token_ids,
            self.num_prompt_tokens,
            self.params,
            seed,
            self.adapter,
            grammar,
            Status.RUNNING,
            num_pending_tokens=self.num_pending_tokens,
            num_top=self.num_top,
            logprobs=list(self.logprobs),
            row=self.row,
            beams=self.beams,
            prompt_array=self.prompt_array,
            sort_key=self.sort_key,
            num_known_tokens=self.num_known_tokens,
        )
        made.take_table(self)
        return made

    def take_table(self, source: "Sequence") -> None:
        """Of another sequence of its row. The caller acquires the blocks, and has released those it had."""
        self.block_table, self.block_hashes = list(source.block_table), list(source.block_hashes)
        self.num_computed_tokens, self.num_cached_blocks = source.num_computed_tokens, source.num_cached_blocks
        self.is_private = source.is_private

    @property
    def root(self) -> str | None:
        """What its blocks start from in the prefix tree: its adapter, on which keys and values depend. Where log-probabilities
        of the prompt lie beside them, as others' do not have them, it is another one."""
        num_top = self.params.prompt_logprobs
        return self.adapter if num_top is None else f"{_PROMPT_LOGPROBS}={num_top} {self.adapter or ''}"

    def num_common(self, other: "Sequence") -> int:
        """Leading prompt tokens that both share; none where their roots differ."""
        return common_prefix_length(self.prompt_array, other.prompt_array) if self.root == other.root else 0

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
    def is_decoding(self) -> bool:
        """The next step computes its newest token, and those forced after it."""
        is_to_compute = self.num_uncomputed_tokens > 0 and not self.is_prefilling
        return self.status is Status.RUNNING and is_to_compute and not self.is_complete

    @property
    def is_complete(self) -> bool:
        """It has all the tokens that it may have: nothing more is computed, though its last ones may not be known yet."""
        return self.num_tokens - self.num_prompt_tokens >= self.params.max_tokens

    @property
    def needs_known_tokens(self) -> bool:
        """Its next token cannot be chosen before all others are known."""
        return self.grammar is not None or self.params.needs_history or self.beams is not None

    @property
    def num_places(self) -> int:
        """Sequences that run for it, once the prompt is computed."""
        return 1 + len(self.forks) if self.beams is None or self.beams.is_parted else self.params.beam_width

    @property
    def is_restored(self) -> bool:
        """It stands for beams that were preempted, and will part into them."""
        return self.beams is not None and bool(self.beams.stored)

    @property
    def generated_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    def count_cached(self, num_tokens: int, counts: TokenCounts, num_earlier: int = 0) -> None:
        """The cache holds the first `num_tokens` tokens without this sequence having computed them, the first `num_earlier` of
        them in blocks of earlier stages."""
        num_new = self._num_unknown(num_tokens)
        self.num_earlier_tokens += self._num_unknown(num_earlier)
        self.num_cached_tokens += num_new
        counts.cached += num_new
        self.num_known_tokens = max(self.num_known_tokens, num_tokens)

    def _num_unknown(self, num_tokens: int) -> int:
        """Of the first so many, those of the prompt that were never in the cache."""
        return max(0, min(num_tokens, self.num_prompt_tokens) - self.num_known_tokens)

    def count_computed(self, start: int, end: int, counts: TokenCounts) -> None:
        """Tokens [start, end) are computed in this step."""
        num_again = max(0, min(end, self.num_known_tokens) - start)
        num_new = max(0, min(end, self.num_prompt_tokens) - max(start, self.num_known_tokens))
        self.num_recomputed_tokens += num_again
        self.num_prefilled_tokens += num_new
        counts.recomputed += num_again
        counts.prefilled += num_new
        self.num_known_tokens = max(self.num_known_tokens, end)


@dataclass(frozen=True)
class Fork:
    """A sequence to be, which differs from the row's first one in these."""

    seq_id: int
    seed: int
    grammar: Grammar | None = None


@dataclass(frozen=True)
class Hypothesis:
    """A beam that has ended."""

    token_ids: list[int]  # generated
    logprobs: list[TokenLogprobs]
    score: np.float32  # the sum divided by length ** length_penalty
    finish_reason: FinishReason
    stop_index: int | None


@dataclass(eq=False)
class BeamGroup:
    """The beams of one row, and how far their search has come (see beam_search.py). Until the prompt is computed the row's first
    sequence stands for them all.
    """

    members: list[Sequence]  # as many as go on, best first
    num_candidates: int  # continuations of all beams that are looked at, at least 2 * beam_width
    scores: list[np.float32] = field(default_factory=lambda: [np.float32(0)])  # of the members
    hypotheses: list[Hypothesis] = field(default_factory=list)  # at most beam_width, best first
    can_improve: bool = True  # a member may still become better than the worst hypothesis
    tops: dict[int, TokenLogprobs] = field(default_factory=dict)  # the most likely next tokens, by seq_id, as far as known
    stored: list[tuple[list[int], list[TokenLogprobs]]] = field(default_factory=list)  # beams that were preempted
    is_parted: bool = False

    @property
    def is_ready(self) -> bool:
        """All that the next choice depends on is known."""
        return len(self.tops) == len(self.members)

    def store(self) -> None:
        """The beams are preempted: their first sequence has the prompt alone from now on, and stands for them."""
        first = self.members[0]
        self.stored = [(member.token_ids, member.logprobs) for member in self.members]
        first.token_ids, first.logprobs = first.token_ids[: first.num_prompt_tokens], []
        self.members, self.tops, self.is_parted = [first], {}, False

    def results(self) -> list[Sequence]:
        """The search is over: the best hypotheses, as sequences that are finished."""
        first = self.members[0]
        prompt = first.token_ids[: first.num_prompt_tokens]
        return [
            replace(
                first,
                seq_id=first.row + i,
                token_ids=[*prompt, *hypothesis.token_ids],
                logprobs=hypothesis.logprobs,
                finish_reason=hypothesis.finish_reason,
                stop_index=hypothesis.stop_index,
                score=float(hypothesis.score),
            )
            for i, hypothesis in enumerate(self.hypotheses[: first.params.n])
        ]


FinishCheck = Callable[[Sequence], FinishReason | None]  # may set stop_index


def is_storable(root: str | None) -> bool:
    """Whether blocks of this root can go to lower tiers, which hold keys and values alone."""
    return root is None or not root.startswith(_PROMPT_LOGPROBS)


def common_prefix_length(a: np.ndarray, b: np.ndarray) -> int:
    """Number of leading tokens that two int32 arrays share."""
    n = min(len(a), len(b))
    differing = a[:n] != b[:n]
    first = int(differing.argmax()) if n else 0
    return first if n and differing[first] else n
