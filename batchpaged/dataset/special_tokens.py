"""Special tokens that are written out in a row's text, kept apart from those that the chat template writes.

A row's text is *hidden* before the chat template sees it: a mark takes the place of every special token in it. What
special tokens the rendered text then holds are the chat template's own. To encode it, a copy of the tokenizer is used
in which these have other names: the tokenizer's own rules apply to them, and their usual names are ordinary text.
"""

from __future__ import annotations

import re
import uuid
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tokenizers import AddedToken, Tokenizer

from batchpaged.errors import RowError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_MARK = "\ue0f0"  # for private use; where it stands in a row's text, it is hidden as well
_HIDDEN = re.compile(f"{_MARK}([0-9]+){_MARK}")


class SpecialTokens:
    """A tokenizer's special tokens, and texts in which they are hidden. Nothing in it changes; threads may share it."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        known = {str(token): token for token in tokenizer.added_tokens_decoder.values() if token.special}
        names = {*known, *map(str, tokenizer.all_special_tokens)} - {""}
        self._names = [_MARK, *sorted(names, key=lambda name: (-len(name), name))]  # the longest match counts
        self._numbers = {name: number for number, name in enumerate(self._names)}
        self._special = re.compile("|".join(map(re.escape, self._names[1:])) or r"(?!)")
        self.tokens = {name: known.get(name, AddedToken(name, normalized=False)) for name in self._names[1:]}

    def find(self, text: str) -> str | None:
        """The first special token written out in `text`."""
        match = self._special.search(text)
        return match[0] if match else None

    def hide(self, value: Any) -> Any:
        """A text, or a nesting of lists and mappings, with every special token hidden."""
        if isinstance(value, str):
            return self._special.sub(self._hide_match, value.replace(_MARK, f"{_MARK}0{_MARK}"))
        if isinstance(value, list):
            return [self.hide(item) for item in value]
        return {key: self.hide(item) for key, item in value.items()} if isinstance(value, dict) else value

    def reveal(self, text: str, aliases: dict[str, str]) -> str:
        """What was hidden as it was, and the special tokens that were not hidden by their aliases."""
        pieces = _HIDDEN.split(text)  # text and numbers in turn
        pieces[::2] = [self._special.sub(lambda match: aliases[match[0]], piece) for piece in pieces[::2]]
        pieces[1::2] = [self._names[int(number)] for number in pieces[1::2]]
        return "".join(pieces)

    def _hide_match(self, match: re.Match[str]) -> str:
        return f"{_MARK}{self._numbers[match[0]]}{_MARK}"


def has_hidden(text: str) -> bool:
    return _MARK in text


class HiddenEncoder:
    """Token ids of texts with hidden special tokens. A copy of the tokenizer is made at the first use."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, backend: Any | None, special: SpecialTokens) -> None:
        """`backend`: the Rust tokenizer behind `tokenizer`; without one, such texts fail."""
        self._backend = backend
        self._special = special
        self._ids = {name: tokenizer.convert_tokens_to_ids(name) for name in special.tokens}
        # An unknown word is the token for unknown words, whatever was written.
        self._control_ids = {id for name, id in self._ids.items() if name != tokenizer.unk_token}
        # Nobody who writes a row's text can know these, and no token id depends on them.
        self._aliases = {name: f"{_MARK}{uuid.uuid4().hex}{_MARK}" for name in special.tokens}

    def reveal(self, text: str) -> str:
        """The text that is encoded in place of this one; its places are those of the encoding."""
        return self._special.reveal(text, self._aliases)

    def encode(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Token ids, and each token's characters in the revealed text. Raises RowError."""
        if self._backend is None:
            raise RowError(f"the prompt holds the text of a special token, {_UNSUPPORTED}")
        encoding = self._copy.encode(self.reveal(text), add_special_tokens=False)
        if not self._control_ids.isdisjoint(encoding.ids):
            raise RowError(f"the prompt holds the text of a special token, {_UNSUPPORTED}")
        return [self._real_ids.get(id, id) for id in encoding.ids], encoding.offsets

    @cached_property
    def _copy(self) -> Tokenizer:
        copy = Tokenizer.from_str(self._backend.to_str())
        copy.encode_special_tokens = True  # their usual names are text
        copy.add_tokens([_renamed(token, self._aliases[name]) for name, token in self._special.tokens.items()])
        return copy

    @cached_property
    def _real_ids(self) -> dict[int, int]:
        return {self._copy.token_to_id(alias): self._ids[name] for name, alias in self._aliases.items()}


_UNSUPPORTED = (
    "which this tokenizer cannot tell from the token itself; remove it, or set prompt.allow_special_tokens: true"
)


def _renamed(token: AddedToken, name: str) -> AddedToken:
    return AddedToken(
        name,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=token.normalized,
        special=False,
    )
