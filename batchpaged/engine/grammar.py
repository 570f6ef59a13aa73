"""Grammars that completions follow: which tokens may come next, and which must.

llguidance does the parsing. Without torch: a step plan carries a sequence's grammar to the sampler, which asks it for the
tokens that are allowed while the model runs, or once it has.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher, LLTokenizer
    from transformers import PreTrainedTokenizerBase

MAX_COMPILED = 128  # grammars kept for sequences to come, the last used


class Grammars:
    """Compiles grammars (see `batchpaged.structured`) for one tokenizer. Owned by the engine's thread."""

    def __init__(self, make_tokenizer: "Callable[[], LLTokenizer]", num_threads: int) -> None:
        """`make_tokenizer` is called for the first grammar; most runs have none, and it takes a third of a second."""
        self._make_tokenizer = make_tokenizer
        self._tokenizer: LLTokenizer | None = None
        self._executor: LLExecutor | None = None
        self._num_threads = num_threads
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()

    def start(self, text: str) -> "Grammar":
        """The state of a completion of which nothing has been written. Raises ValueError if it cannot be followed."""
        if text not in self._compiled:
            self._compiled[text] = self._compile(text)
            if len(self._compiled) > MAX_COMPILED:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(text)
        return Grammar(self._compiled[text].deep_copy(), self)

    def fill(self, grammars: "Sequence[Grammar]") -> np.ndarray:
        """See `allowed_tokens`."""
        masks = np.zeros((len(grammars), -(-self._tokenizer.vocab_size // 32)), dtype=np.uint32)
        rows = [(grammar.matcher, row) for row, grammar in enumerate(grammars)]
        self._executor.unsafe_compute_mask_ptr(rows, masks.ctypes.data, masks.shape[1] * 4, len(masks))
        return masks

    def _compile(self, text: str) -> "LLMatcher":
        from llguidance import LLExecutor, LLMatcher, LLParserLimits

        if self._tokenizer is None:
            self._tokenizer = self._make_tokenizer()
            self._executor = LLExecutor(self._num_threads)
        matcher = LLMatcher(self._tokenizer, text, log_level=0, limits=LLParserLimits(verbose_errors=False))
        if matcher.is_error():
            raise ValueError(matcher.get_error().partition("\n")[0][:200])
        return matcher


class Grammar:
    """How far one completion has come: a function of the grammar and the generated token ids, and of nothing else.

    So it needs no saving: whoever has the ids can make it again, and a preempted sequence keeps it.
    """

    def __init__(self, matcher: "LLMatcher", grammars: Grammars) -> None:
        self.matcher = matcher
        self.grammars = grammars  # that it was made by

    @property
    def is_over(self) -> bool:
        """Nothing can follow. Also after an error."""
        return self.matcher.is_stopped()

    @property
    def error(self) -> str | None:
        """Why the grammar cannot be followed any further: one of llguidance's limits, as a rule. Holds nothing of the text."""
        if not self.matcher.is_error():
            return None
        return f"its grammar could not be followed to the end ({self.matcher.stop_reason()})"

    def accept(self, token_id: int) -> None:
        """The completion's next token."""
        self.matcher.consume_token(token_id)

    def forced(self) -> list[int]:
        """The tokens that must come next, in order, whatever the model says. They are not accepted yet."""
        return [] if self.matcher.is_stopped() else self.matcher.compute_ff_tokens()


def allowed_tokens(grammars: Sequence[Grammar]) -> np.ndarray:
    """-> uint32 [number of grammars, words]: bit i of a row says whether token id i may come next.

    A row has at least as many bits as the model's logits; ids that the tokenizer does not know are never allowed.
    Computed by llguidance's own threads, of as many as the engine has.
    """
    return grammars[0].grammars.fill(grammars)


def make_tokenizer(tokenizer: "PreTrainedTokenizerBase", vocab_size: int, eos: frozenset[int]) -> "LLTokenizer":
    """llguidance's view of a tokenizer. `vocab_size`: of the model's logits. Raises ValueError if it cannot have one."""
    from llguidance.hf import from_tokenizer

    return from_tokenizer(tokenizer, n_vocab=max(vocab_size, len(tokenizer)), eos_token=sorted(eos) or None)
