"""When a sequence is finished, and the text of its completion."""

from typing import Protocol

from batchpaged.engine.sampling_params import SamplingParams
from batchpaged.engine.sequence import FinishReason, Sequence

# A token that adds to the text adds at least one byte; a few more cover partial characters and stripped spaces.
NUM_MARGIN_TOKENS = 8


class Tokenizer(Protocol):
    def decode(self, token_ids: list[int], skip_special_tokens: bool) -> str: ...


class StopCheck:
    """Decides after each token whether a sequence is finished, and cuts the text.

    Stop strings are looked for in decoded text, never in single tokens, so they are found across token and UTF-8
    boundaries; the completion ends before the stop string.
    """

    def __init__(self, tokenizer: Tokenizer, eos_token_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._eos_token_ids = eos_token_ids
        self._has_text: dict[int, bool] = {}  # by token id

    def num_end_tokens(self, params: SamplingParams) -> int:
        """Tokens that end a completion."""
        return len(params.stop_token_ids | (frozenset() if params.ignore_eos else self._eos_token_ids))

    def finish_reason(self, sequence: Sequence) -> FinishReason | None:
        """Called after a token was appended; sets `sequence.stop_index` where a stop string was found."""
        if self._is_stop_token(sequence):
            return "stop"
        if sequence.grammar is not None and sequence.grammar.is_over:
            return "stop"
        if sequence.params.stop and self._find_stop_string(sequence):
            return "stop"
        return "length" if sequence.num_generated_tokens >= sequence.params.max_tokens else None

    def text(self, sequence: Sequence) -> str:
        """The completion of a finished sequence, without stop string and stop token."""
        ids = sequence.generated_token_ids
        if sequence.stop_index is None and self._is_stop_token(sequence):
            ids = ids[:-1]
        return self._decode(ids)[: sequence.stop_index]

    def _is_stop_token(self, sequence: Sequence) -> bool:
        params, token = sequence.params, sequence.token_ids[-1]
        is_eos = token in self._eos_token_ids and not params.ignore_eos
        return is_eos or token in params.stop_token_ids

    def _find_stop_string(self, sequence: Sequence) -> bool:
        """Look at the end of the text first: decoding all of it after every token would be quadratic in its length."""
        stops = sequence.params.stop
        ids = sequence.generated_token_ids
        num_tail_tokens = max(len(stop.encode()) for stop in stops) + NUM_MARGIN_TOKENS
        tail = self._decode(ids[self._tail_start(ids, num_tail_tokens) :])
        if not any(stop in tail for stop in stops):
            return False
        text = self._decode(ids)
        found = [at for at in map(text.find, stops) if at >= 0]
        sequence.stop_index = min(found, default=None)
        return sequence.stop_index is not None

    def _tail_start(self, ids: list[int], num_tokens: int) -> int:
        """Where the last `num_tokens` tokens begin, not counting special ones, of which there may be any number."""
        for index in range(len(ids) - 1, -1, -1):
            num_tokens -= self._adds_text(ids[index])
            if num_tokens == 0:
                return index
        return 0

    def _adds_text(self, token_id: int) -> bool:
        if token_id not in self._has_text:
            self._has_text[token_id] = self._decode([token_id]) != ""
        return self._has_text[token_id]

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=True)
