"""The rows under examination, in several versions: as they are, and with one thing or another changed."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from batchpaged.config import PromptConfig
from batchpaged.dataset.prompt_sources import Renders
from batchpaged.dataset.prompts import PromptBuilder
from batchpaged.dataset.template_parts import TemplateParts
from batchpaged.errors import RowError
from batchpaged.planning.diagnosis.sharing import Sharing, share_texts, share_tokens


@dataclass(frozen=True, eq=False)
class Version:
    """The rows, changed in some way."""

    table: pa.Table
    moved: frozenset[int] = frozenset()  # printed expressions that stand at the end of the user text


@dataclass(frozen=True)
class Comparison:
    """Two versions of those rows that are prompts in both."""

    rows: np.ndarray  # int64: which rows these are
    now: Sharing
    then: Sharing

    @property
    def num_saved(self) -> int:
        return self.now.num_unique - self.then.num_unique

    @property
    def hit_rate(self) -> float:
        """Ceiling of the hit rate then."""
        return 1 - self.then.num_unique / self.then.num_items

    @property
    def growth(self) -> np.ndarray:
        """int64 per row: how much more it shares with another row then."""
        return self.then.longest - self.now.longest

    @property
    def mean_growth(self) -> float:
        """Over the rows that share more then."""
        grown = self.growth[self.growth > 0]
        return float(grown.mean()) if len(grown) else 0.0

    def example_rows(self) -> tuple[int, ...]:
        """The row that gains most, and the one it would share with."""
        has_neighbour = self.then.before != np.arange(len(self.rows))
        row = int(np.where(has_neighbour, self.growth, -1).argmax())
        return tuple(sorted({int(self.rows[row]), int(self.rows[self.then.before[row]])}))


@dataclass
class Examination:
    """Texts and tokens of versions, each made once. For sources that give text."""

    builder: PromptBuilder
    config: PromptConfig
    base: Version  # the rows as they are
    _texts: dict[Version, list[bytes | None]] = field(default_factory=dict)
    _tokens: dict[Version, list[np.ndarray | None]] = field(default_factory=dict)

    @cached_property
    def parts(self) -> list[tuple[str, int, TemplateParts]]:
        """(role, number of its first printed expression, parts) of each template, in the order of the messages."""
        parts, first = [], 0
        for role, text in (("system", self.config.system), ("user", self.config.user)):
            if text is not None:
                parts.append((role, first, TemplateParts(text, f"prompt.{role}")))
                first += len(parts[-1][2].printed)
        return parts

    @property
    def columns(self) -> list[str]:
        """That prompts are made from."""
        return self.builder.columns

    def texts(self, version: Version) -> list[bytes | None]:
        """What each row says, without a chat template; None where it fails."""
        if version not in self._texts:
            contents = self._builder(version).contents(version.table)
            self._texts[version] = [None if isinstance(c, RowError) else _encode(c) for c in contents]
        return self._texts[version]

    def tokens(self, version: Version) -> list[np.ndarray | None]:
        """Prompts as a run would make them; None where a row fails. Rows that say what they did are not made again."""
        if version not in self._tokens:
            found, wanted = self._known_tokens(version)
            made = self._builder(version).build(version.table.take(pa.array(wanted, pa.int64())))
            for row, prompt in zip(wanted, made["token_ids"], strict=True):
                found[row] = prompt.values.to_numpy() if prompt.is_valid else None
            self._tokens[version] = found
        return self._tokens[version]

    def _known_tokens(self, version: Version) -> tuple[list[np.ndarray | None], list[int]]:
        """-> tokens of the rows that are as in the base, and which rows are not."""
        if version is self.base:
            return [None] * version.table.num_rows, list(range(version.table.num_rows))
        before, after = self.texts(self.base), self.texts(version)
        changed = [i for i in range(len(before)) if before[i] != after[i]]
        return list(self.tokens(self.base)), changed

    def compare_texts(self, now: Version, then: Version) -> Comparison:
        return _compare(self.texts(now), self.texts(then), share_texts)

    def compare_tokens(self, now: Version, then: Version) -> Comparison:
        return _compare(self.tokens(now), self.tokens(then), share_tokens)

    def forget_all_but(self, versions: Collection[Version]) -> None:
        """Free the texts and tokens of the others; those of the base stay."""
        for kept in (self._texts, self._tokens):
            for version in kept.keys() - {self.base, *versions}:
                del kept[version]

    def _builder(self, version: Version) -> PromptBuilder:
        return self.builder.with_templates(self._templates(version.moved)) if version.moved else self.builder

    def _templates(self, moved: Collection[int]) -> dict[str, Renders]:
        templates: dict[str, Renders] = {}
        taken_out: list[Renders] = []
        for role, first, parts in self.parts:
            numbers = {number - first for number in moved if first <= number < first + len(parts.printed)}
            templates[role] = parts.without(numbers)
            taken_out += [parts.only(number) for number in sorted(numbers)]
        return {**templates, "user": _WithMoved(templates["user"], taken_out)}


@dataclass(frozen=True)
class _WithMoved:
    """A user template without some expressions, which follow at the end, each on a line of its own."""

    rest: Renders
    moved: list[Renders]

    def render(self, values: dict[str, Any]) -> str:
        return "\n".join(template.render(values) for template in (self.rest, *self.moved))


def _compare(now: Sequence[Any], then: Sequence[Any], share: Callable[[Sequence[Any]], Sharing]) -> Comparison:
    rows = [i for i in range(len(now)) if now[i] is not None and then[i] is not None]
    return Comparison(np.array(rows, np.int64), share([now[i] for i in rows]), share([then[i] for i in rows]))


def _encode(contents: Sequence[str]) -> bytes:
    return "\0".join(contents).encode("utf-8", "surrogatepass")
