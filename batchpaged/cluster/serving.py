"""What crosses between the tasks of units and the engine that computes them."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from batchpaged.engine.engine import Completion
from batchpaged.engine.sampling_params import SamplingParams

Sample = dict[str, float | int | str]


@dataclass(frozen=True)
class UnitRow:
    token_ids: list[int]
    row_id: str
    grammar: str | None = None  # that its completion must follow
    adapter: str | None = None  # identity of its LoRA adapter

    @property
    def kind(self) -> Hashable:
        """What its completion depends on besides its prompt and the run."""
        return self.grammar, self.adapter


@dataclass(frozen=True)
class UnitOutcome:
    """A computed unit, and the engine's counters since its start as they stood when the unit was done."""

    rows: list[Completion | str]  # in the order given; a string says why the engine refused the row
    facts: dict[str, Any]  # JSON-able


@dataclass(frozen=True)
class Serving:
    """A stage of a run, or a run without stages, as far as an engine has to know it."""

    sitting: str
    params: SamplingParams
    emit: Callable[[Sample], None]  # called with each sample of the timeline
    fans_out: bool = False  # equal rows that follow each other are computed once
