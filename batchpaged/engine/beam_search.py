"""Beam search over one row: which beams go on, and which continuations have ended. No model, no blocks.

As in transformers' `generate`, step by step and in float32, so that beams and scores are the same. Of all continuations of
all beams the best `num_candidates` are looked at: those among the first `width` that end are hypotheses, and the best
`width` that do not end go on.
"""

from dataclasses import dataclass

import numpy as np

from batchpaged.engine.sampling_params import SamplingParams
from batchpaged.engine.sequence import BeamGroup, FinishCheck, FinishReason, Hypothesis
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


class BeamSearch:
    """The rules. What differs from row to row lies in its group."""

    def __init__(self, finish_check: FinishCheck) -> None:
        self._finish_check = finish_check

    def advance(self, group: BeamGroup) -> list[Continuation] | None:
        """All that the next choice depends on is known. -> the beams that go on, best first; None once the search is over.

        Changes the group's scores and hypotheses, not its members.
        """
        params = _params(group)
        candidates = self._candidates(group)
        num_generated = group.members[0].num_generated_tokens + 1
        _end(group, [c for c in candidates[: params.beam_width] if c.finish_reason], num_generated)
        going_on = [c for c in candidates if c.finish_reason is None][: params.beam_width]
        group.scores = [c.score for c in going_on]
        _judge(group, num_generated)
        is_over = not going_on or not group.can_improve or _has_enough(group)
        return None if is_over else going_on

    def _candidates(self, group: BeamGroup) -> list[Continuation]:
        """The best continuations, in order; of equal ones that of the first beam, and then the smallest token id."""
        tops = [group.tops[member.seq_id] for member in group.members]
        scores = np.concatenate([score + top.top_logprobs[0] for score, top in zip(group.scores, tops, strict=True)])
        places = [(beam, index) for beam, top in enumerate(tops) for index in range(top.top_ids.shape[1])]
        ids = np.concatenate([top.top_ids[0] for top in tops])
        order = np.lexsort((ids, [beam for beam, _ in places], -scores))[: group.num_candidates]
        return [self._continuation(group, *places[i], scores[i]) for i in order]

    def _continuation(self, group: BeamGroup, beam: int, index: int, score: np.float32) -> Continuation:
        sequence = group.members[beam]
        top = group.tops[sequence.seq_id]
        token_id = int(top.top_ids[0, index])
        sequence.token_ids.append(token_id)
        finish_reason, stop_index = self._finish_check(sequence), sequence.stop_index
        sequence.token_ids.pop()
        sequence.stop_index = None
        num_top = sequence.params.logprobs or 0
        chosen = TokenLogprobs(
            top.top_logprobs[0, index : index + 1],
            np.array([index + 1], dtype=np.int32),
            top.top_ids[:, :num_top],
            top.top_logprobs[:, :num_top],
        )
        return Continuation(beam, token_id, chosen, score, finish_reason, stop_index)


def _params(group: BeamGroup) -> SamplingParams:
    return group.members[0].params


def _has_enough(group: BeamGroup) -> bool:
    """Hypotheses, where the search ends as soon as there are."""
    params = _params(group)
    return len(group.hypotheses) >= params.beam_width and params.early_stopping is True


def _end(group: BeamGroup, ended: list[Continuation], num_generated: int) -> None:
    """Keep the best of those that ended and the hypotheses so far."""
    if not group.can_improve or _has_enough(group):
        return
    params, beams = _params(group), group.members
    length = np.float32(num_generated**params.length_penalty)
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
    group.hypotheses = sorted(group.hypotheses + new, key=lambda h: -h.score)[: params.beam_width]


def _judge(group: BeamGroup, num_generated: int) -> None:
    """Whether the best running beam could still beat the worst hypothesis. Once it cannot, that is final."""
    params = _params(group)
    if len(group.hypotheses) < params.beam_width or not group.scores:
        return
    is_longest = params.early_stopping == "never" and params.length_penalty > 0
    length = params.max_tokens if is_longest else num_generated
    best_possible = group.scores[0] / np.float32(length**params.length_penalty)
    group.can_improve = group.can_improve and bool(best_possible > group.hypotheses[-1].score)
