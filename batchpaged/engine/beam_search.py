"""Beam search over one row: which beams go on, and which continuations have ended. No model, no blocks.

As in transformers' `generate`, step by step and in float32, so that beams and scores are the same. Of all continuations of
all beams the best `num_candidates` are looked at: those among the first `width` that end are hypotheses, and the best
`width` that do not end go on.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from batchpaged.engine.sampling_params import SamplingParams
from batchpaged.engine.sequence import FinishReason, Sequence
from batchpaged.engine.step import TokenLogprobs


@dataclass(frozen=True)
class Continuation:
    """A beam and the token that follows it."""

    beam: int
    token_id: int
    logprobs: TokenLogprobs  # of the token, n = 1
    score: np.float32  # sum of log-probabilities of all generated tokens
    finish_reason: FinishReason | None
    stop_index: int | None  # as of Sequence


@dataclass(frozen=True)
class Hypothesis:
    """A beam that has ended."""

    token_ids: list[int]  # generated
    logprobs: list[TokenLogprobs]
    score: np.float32  # the sum divided by length ** length_penalty
    finish_reason: FinishReason
    stop_index: int | None


@dataclass
class BeamSearch:
    params: SamplingParams
    num_candidates: int  # continuations of all beams that are looked at, at least 2 * beam_width
    finish_check: Callable[[Sequence], FinishReason | None]
    scores: list[np.float32] = field(default_factory=lambda: [np.float32(0)])  # of the beams that go on, best first
    hypotheses: list[Hypothesis] = field(default_factory=list)  # at most beam_width, best first
    can_improve: bool = True  # a running beam may still become better than the worst hypothesis

    @property
    def is_full(self) -> bool:
        return len(self.hypotheses) >= self.params.beam_width

    def advance(self, beams: list[Sequence], tops: list[TokenLogprobs]) -> list[Continuation] | None:
        """tops: the most likely tokens after each beam. -> the beams that go on, best first; None once the search is over."""
        candidates = self._candidates(beams, tops)
        num_generated = beams[0].num_generated_tokens + 1
        self._end(beams, [c for c in candidates[: self.params.beam_width] if c.finish_reason], num_generated)
        going_on = [c for c in candidates if c.finish_reason is None][: self.params.beam_width]
        self.scores = [c.score for c in going_on]
        self._judge(num_generated)
        is_over = not going_on or not self.can_improve or (self.is_full and self.params.early_stopping is True)
        return None if is_over else going_on

    def _candidates(self, beams: list[Sequence], tops: list[TokenLogprobs]) -> list[Continuation]:
        """The best continuations, in order; of equal ones that of the first beam, and then the smallest token id."""
        scores = np.concatenate([score + top.top_logprobs[0] for score, top in zip(self.scores, tops, strict=True)])
        places = [(beam, index) for beam, top in enumerate(tops) for index in range(top.top_ids.shape[1])]
        ids = np.concatenate([top.top_ids[0] for top in tops])
        order = np.lexsort((ids, [beam for beam, _ in places], -scores))[: self.num_candidates]
        return [self._continuation(beams, tops, *places[i], scores[i]) for i in order]

    def _continuation(
        self, beams: list[Sequence], tops: list[TokenLogprobs], beam: int, index: int, score: np.float32
    ) -> Continuation:
        sequence, top = beams[beam], tops[beam]
        token_id = int(top.top_ids[0, index])
        sequence.token_ids.append(token_id)
        finish_reason, stop_index = self.finish_check(sequence), sequence.stop_index
        sequence.token_ids.pop()
        sequence.stop_index = None
        num_top = self.params.logprobs or 0
        chosen = TokenLogprobs(
            top.top_logprobs[0, index : index + 1],
            np.array([index + 1], dtype=np.int32),
            top.top_ids[:, :num_top],
            top.top_logprobs[:, :num_top],
        )
        return Continuation(beam, token_id, chosen, score, finish_reason, stop_index)

    def _end(self, beams: list[Sequence], ended: list[Continuation], num_generated: int) -> None:
        """Keep the best of those that ended and the hypotheses so far."""
        if not self.can_improve or (self.is_full and self.params.early_stopping is True):
            return
        length = np.float32(num_generated**self.params.length_penalty)
        new = [
            Hypothesis(
                [*beams[c.beam].generated_token_ids, c.token_id],
                [*beams[c.beam].logprobs, c.logprobs],
                c.score / length,
                c.finish_reason,
                c.stop_index,
            )
            for c in ended
        ]
        self.hypotheses = sorted(self.hypotheses + new, key=lambda h: -h.score)[: self.params.beam_width]

    def _judge(self, num_generated: int) -> None:
        """Whether the best running beam could still beat the worst hypothesis. Once it cannot, that is final."""
        if not self.is_full or not self.scores:
            return
        params = self.params
        is_longest = params.early_stopping == "never" and params.length_penalty > 0
        length = params.max_tokens if is_longest else num_generated
        best_possible = self.scores[0] / np.float32(length**params.length_penalty)
        self.can_improve = self.can_improve and bool(best_possible > self.hypotheses[-1].score)
