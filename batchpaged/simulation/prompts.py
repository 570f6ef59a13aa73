"""What a simulation replays: prompts in planned order."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batchpaged.engine.sequence import common_prefix_length
from batchpaged.planning.order import Order
from batchpaged.planning.plan_file import PROMPTS_SCHEMA, read_plan, read_unit
from batchpaged.planning.units import Unit

NUM_SLICES = 16  # of a sample: enough to meet large prefix groups and small ones


@dataclass(frozen=True)
class PlannedPrompts:
    """Prompts in planned order; none is empty."""

    values: np.ndarray  # int32 [tokens], all prompts one after another
    offsets: np.ndarray  # int64 [rows + 1]: where each begins in `values`
    grammars: tuple[str | None, ...] = ()  # of each row; none at all: all have the run's

    @classmethod
    def of(cls, prompts: Sequence[np.ndarray], grammars: Sequence[str | None] = ()) -> "PlannedPrompts":
        """`prompts`: int32 [tokens] each."""
        offsets = np.cumsum([0, *map(len, prompts)], dtype=np.int64)
        return cls(np.concatenate([np.zeros(0, np.int32), *prompts]), offsets, tuple(grammars))

    def kinds(self, start: int, end: int) -> Sequence[str | None]:
        """Of these rows, what a completion depends on besides the prompt."""
        return self.grammars[start:end] or [None] * (end - start)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> np.ndarray:
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    def order(self) -> Order:
        """As planning has it for these rows alone."""
        shared = [common_prefix_length(self[a], self[b]) for a, b in pairwise(range(len(self)))]
        num_shared = np.array([0, *shared][: len(self)], dtype=np.int64)
        return Order(np.arange(len(self)), np.diff(self.offsets), num_shared)


def read_prompts(folder: Path, num_rows: int) -> PlannedPrompts:
    """Of the plan in `folder`: all prompts, or about `num_rows` of them in contiguous slices, so that neighbours meet."""
    units = _sample(read_plan(folder)[1], num_rows)
    rows = pa.concat_tables([PROMPTS_SCHEMA.empty_table(), *(read_unit(folder, unit.index) for unit in units)])
    rows = rows.filter(pc.is_valid(rows["token_ids"]))
    has_grammars = rows["grammar"].null_count < len(rows)
    return PlannedPrompts.of(list(map(_as_array, rows["token_ids"])), rows["grammar"].to_pylist() if has_grammars else ())


def _as_array(token_ids: pa.ListScalar) -> np.ndarray:
    return token_ids.values.to_numpy()


def _sample(units: list[Unit], num_rows: int) -> list[Unit]:
    total = units[-1].end if units else 0
    if num_rows >= total:
        return units
    num_slices = min(NUM_SLICES, len(units), num_rows)
    starts = [total * i // num_slices for i in range(num_slices)]
    return [u for u in units if any(start <= u.start < start + num_rows / num_slices for start in starts)]
