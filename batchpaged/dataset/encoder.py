"""Texts to token ids, a batch at a time, with exactly one beginning-of-sequence token."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from batchpaged.dataset.special_tokens import HiddenEncoder, SpecialTokens, has_hidden
from batchpaged.errors import RowError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_PROBE = [
    "A probe: naïve 漢字 \U0001f600\n\n  two",
    "",
    " x",
]  # the short way must agree with the tokenizer's own on these


class Encoder:
    """A tokenizer as the planner needs it. Encoding changes no state, so threads may share one.

    Special tokens written out in a text become special tokens, as everywhere in transformers, unless they are hidden
    (see special_tokens.py).

    `bos` is what the tokenizer puts before a text by itself (usually one token, for some models none or two). It is
    prepended unless the text, through its chat template, begins with it already.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, special: SpecialTokens | None = None) -> None:
        """`special`: what may be hidden in the texts; None where nothing is."""
        self._tokenizer = tokenizer
        self._backend = _find_backend(tokenizer)
        self._hidden = None if special is None else HiddenEncoder(tokenizer, self._backend, special)
        self.bos = _find_bos(tokenizer)
        self.vocab_size = max([len(tokenizer), *(token_id + 1 for token_id in tokenizer.get_vocab().values())])

    def encode(self, texts: Sequence[str]) -> list[list[int] | RowError]:
        """Token ids of each text, in order. A text that cannot be encoded gets a RowError, and the others their ids."""
        usual = iter(self._encode_usual([text for text in texts if not self._has_hidden(text)]))
        results = [self._encode_one(text) if self._has_hidden(text) else next(usual) for text in texts]
        return [ids if isinstance(ids, RowError) else self.with_bos(ids) for ids in results]

    def with_bos(self, ids: list[int]) -> list[int]:
        return ids if self.has_bos(ids) else self.bos + ids

    def has_bos(self, ids: Sequence[int]) -> bool:
        return list(ids[: len(self.bos)]) == self.bos

    def find_tokens(self, text: str, start: int, end: int) -> tuple[int, int] | None:
        """The range of token positions (with BOS) that lie wholly in text[start:end]; None without a fast tokenizer."""
        if self._backend is None:
            return None
        if self._has_hidden(text):
            ids, offsets = self._hidden.encode(text)
            start, end = (len(self._hidden.reveal(text[:place])) for place in (start, end))
        else:
            encoding = self._backend.encode(text, add_special_tokens=False)
            ids, offsets = encoding.ids, encoding.offsets
        first = bisect_left(offsets, start, key=lambda span: span[0])
        last = bisect_right(offsets, end, key=lambda span: span[1])
        shift = 0 if self.has_bos(ids) else len(self.bos)
        first = max(first, len(self.bos) - shift)  # a BOS in the text itself stays as well
        return first + shift, max(first, last) + shift

    def _has_hidden(self, text: str) -> bool:
        return self._hidden is not None and has_hidden(text)

    def _encode_usual(self, texts: list[str]) -> list[list[int] | RowError]:
        try:
            return [*self._encode_batch(texts)] if texts else []
        except Exception:  # which text it was is not said, so try each
            return [self._encode_one(text) for text in texts]

    def _encode_batch(self, texts: list[str]) -> list[list[int]]:
        if self._backend is not None:
            return [encoding.ids for encoding in self._backend.encode_batch_fast(texts, add_special_tokens=False)]
        return _encode_by_tokenizer(self._tokenizer, texts)

    def _encode_one(self, text: str) -> list[int] | RowError:
        try:
            text.encode()
            return self._hidden.encode(text)[0] if self._has_hidden(text) else self._encode_batch([text])[0]
        except RowError as error:
            return error
        except UnicodeEncodeError:
            return RowError("the prompt holds a lone surrogate, which is not valid Unicode")
        except Exception as error:
            return RowError(f"the tokenizer failed on a prompt of {len(text)} characters ({type(error).__name__})")


def _encode_by_tokenizer(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> list[list[int]]:
    return tokenizer(texts, add_special_tokens=False, return_attention_mask=False, verbose=False)["input_ids"]


def _find_backend(tokenizer: PreTrainedTokenizerBase) -> Any | None:
    """The Rust tokenizer, where its ids are the tokenizer's: a third faster, and it locks nothing."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or not hasattr(backend, "encode_batch_fast"):
        return None
    expected = _encode_by_tokenizer(
        tokenizer, _PROBE
    )  # also switches off truncation and padding that were saved with it
    return backend if [e.ids for e in backend.encode_batch_fast(_PROBE, add_special_tokens=False)] == expected else None


def _find_bos(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """What comes before the text when special tokens are wanted; what comes after (an end token) is not for prompts."""
    plain = tokenizer("x", add_special_tokens=False)["input_ids"]
    full = tokenizer("x")["input_ids"]
    starts = (i for i in range(len(full) - len(plain) + 1) if full[i : i + len(plain)] == plain)
    return full[: next(starts, 0)]
