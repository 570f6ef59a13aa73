"""Rows of an earlier plan in a new one: where a stage's input has changed, rows that ask for the same are kept.

    stages/.judge.earlier/     the stage as it was, its units as they were finished
    stages/judge/              the stage anew; after planning, each unit finds the rows that it need not compute in units/retry-...

`--retry-failed` makes such a pair of each stage after the one whose rows are computed again.
"""

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from batchpaged.dataset.schema import OUTPUT_COLUMNS
from batchpaged.planning.plan_file import PROMPTS_SCHEMA, read_unit
from batchpaged.run.directory import RunDirectory
from batchpaged.run.failed_rows import all_facts
from batchpaged.run.unit_file import DamagedUnit, check_unit, prompt_hash, read_unit_facts, unit_schema, write_unit_table

_SETTINGS = ["grammar", "adapter"]  # of a row, beside its prompt
_NUM_LOADED = 8  # units in memory; the two plans have nearly the same order


def take_over(directory: RunDirectory, num_units: int, columns: pa.Schema = OUTPUT_COLUMNS) -> int:
    """Give the units of a new plan what `directory.earlier` has finished; then that goes. -> rows that are kept

    A row is kept if it did not fail, and has the prompt, the grammar and the adapter that it had. No unit may have begun; whatever
    ends this, it can be done again.
    """
    earlier, num_kept = directory.earlier, 0
    files = dict(_finished_units(earlier))
    finished = _FinishedRows(earlier, files, columns)
    for unit in range(num_units):
        indices = [unit] if unit < num_units - 1 else sorted(i for i in files if i >= unit)
        facts = all_facts([read_unit_facts(files[i]) for i in indices if i in files])
        rows = finished.of_prompts(read_unit(directory.path, unit))
        if facts or len(rows):
            write_unit_table(directory.retry_file(unit), rows, {"num_rows": len(rows), "earlier": facts})
        num_kept += len(rows)
    for sitting in earlier.sittings.glob("*.json"):
        (directory.sittings / sitting.name).write_bytes(sitting.read_bytes())
    earlier.delete()
    return num_kept


def _finished_units(directory: RunDirectory) -> Iterator[tuple[int, Path]]:
    """Those that were set aside among them, unless they are done again; none that is damaged."""
    units = sorted(directory.units.glob("unit-*.parquet"))
    aside = [path for path in sorted(directory.units.glob("retry-*.parquet")) if not directory.is_unit_done(_number(path))]
    for path in (*units, *aside):
        try:
            check_unit(path)
        except DamagedUnit:
            continue
        yield _number(path), path


def _number(path: Path) -> int:
    return int(path.stem.rpartition("-")[2])


class _FinishedRows:
    """Of all units together, found by ordinal. 16 bytes a row in memory, and a few units."""

    def __init__(self, earlier: RunDirectory, files: dict[int, Path], columns: pa.Schema) -> None:
        """`files`: by number of the unit in the earlier plan."""
        self._earlier, self._files, self._schema = earlier, files, unit_schema(columns)
        self._load = lru_cache(_NUM_LOADED)(self._read)
        places = [_places(unit, path) for unit, path in files.items()]
        every = np.concatenate(places, axis=1) if places else np.zeros((3, 0), np.int64)
        self._ordinals, self._file, self._row = every[:, every[0].argsort()]

    def of_prompts(self, prompts: pa.Table) -> pa.Table:
        """Those of these rows of a plan (PROMPTS_SCHEMA) that were computed with the same prompt, grammar and adapter."""
        asked = {row["ordinal"]: row for row in prompts.select(["ordinal", "token_ids", *_SETTINGS]).to_pylist()}
        rows = self._of_ordinals(np.array([o for o, row in asked.items() if row["token_ids"] is not None], np.int64))
        found = rows.select(["ordinal", "prompt_hash", *_SETTINGS]).to_pylist()
        return rows.filter(pa.array([_is_same(row, asked[row["ordinal"]]) for row in found], pa.bool_())).drop(_SETTINGS)

    def _of_ordinals(self, ordinals: np.ndarray) -> pa.Table:
        at = np.searchsorted(self._ordinals, ordinals)
        is_there = at < len(self._ordinals)
        at, ordinals = at[is_there], ordinals[is_there]
        at = at[self._ordinals[at] == ordinals]
        files, rows = self._file[at], self._row[at]
        parts = [self._load(int(unit)).take(pa.array(rows[files == unit])) for unit in np.unique(files)]
        return pa.concat_tables([_with_settings(self._schema.empty_table(), PROMPTS_SCHEMA.empty_table()), *parts])

    def _read(self, unit: int) -> pa.Table:
        rows = pq.read_table(self._files[unit], partitioning=None).replace_schema_metadata(None)
        return _with_settings(rows, read_unit(self._earlier.path, unit))


def _with_settings(rows: pa.Table, prompts: pa.Table) -> pa.Table:
    """With what else than the prompt a completion depends on, from the plan that they were computed by."""
    at = pc.index_in(rows["ordinal"], prompts["ordinal"].combine_chunks())
    for name in _SETTINGS:
        rows = rows.append_column(PROMPTS_SCHEMA.field(name), prompts[name].combine_chunks().take(at.combine_chunks()))
    return rows


def _is_same(found: dict[str, Any], asked: dict[str, Any]) -> bool:
    is_prompt = found["prompt_hash"] == prompt_hash(asked["token_ids"])
    return is_prompt and all(found[name] == asked[name] for name in _SETTINGS)


def _places(unit: int, path: Path) -> np.ndarray:
    """int64 [3, rows that did not fail]: ordinal, number of the unit, place in its file."""
    columns: Any = pq.read_table(path, columns=["ordinal", "status"], partitioning=None)
    rows = np.flatnonzero(columns["status"].to_numpy() != "failed")
    ordinals = columns["ordinal"].to_numpy()[rows]
    return np.stack([ordinals, np.full(len(rows), unit), rows])
