"""How the next token is chosen, and when a sequence ends."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class SamplingParams:
    """Settings of one run, shared by all its sequences; validated by `batchpaged.config`."""

    max_tokens: int = 32  # most tokens generated per sequence
    temperature: float = 0.0  # 0: greedy
    top_p: float = 1.0  # smallest set of tokens with this much probability
    top_k: int | None = None  # the k most likely tokens
    min_p: float = 0.0  # at least this fraction of the best token's probability
    repetition_penalty: float = 1.0  # > 1 makes tokens already in prompt or completion less likely
    seed: int = 0  # of the run; each row derives its own
    stop: tuple[str, ...] = ()  # texts that end a completion; never part of it
    stop_token_ids: frozenset[int] = frozenset()  # end a completion besides the model's end-of-text
    ignore_eos: bool = False  # go on after the model's end-of-text, to max_tokens
    logprobs: int | None = None  # log-probabilities of generated tokens, and of this many of the most likely ones
    prompt_logprobs: int | None = None  # the same of prompt tokens
    n: int = 1  # completions of a row
    best_of: int | None = None  # sequences sampled for it, of which the n with the best mean log-probability are kept
    beam_width: int | None = None  # beam search with so many beams, of which the n best are kept
    length_penalty: float = 1.0  # a beam's score is its log-probability over its length to the power of this
    early_stopping: bool | Literal["never"] = False  # when a beam search ends; as in transformers

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def num_sequences(self) -> int:
        """Of a row, once its prompt is computed. Under greedy sampling all would be equal: one stands for them."""
        if self.beam_width is not None:
            return self.beam_width
        return 1 if self.is_greedy else self.best_of or self.n

    @property
    def needs_history(self) -> bool:
        """The choice of a token depends on those before it, not on logits alone."""
        return self.repetition_penalty != 1.0
