"""How the next token is chosen, and when a sequence ends."""

from dataclasses import dataclass


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

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def needs_history(self) -> bool:
        """The choice of a token depends on those before it, not on logits alone."""
        return self.repetition_penalty != 1.0
