"""Prompt tables and files for the planner, and what it must find in them by brute force."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from batchpaged.planning.cost import CostModel
from batchpaged.planning.plan_file import PROMPTS_SCHEMA
from batchpaged.planning.planner import PlanSettings, preview_plan
from batchpaged.planning.summary import PlanSummary

Prompts = Sequence[Sequence[int]]

_TOKENS = st.integers(0, 2) | st.sampled_from([255, 256, 65_536, 2**24, 2**31 - 1])  # bytes of all four places differ
PROMPT_LISTS = st.lists(st.lists(_TOKENS, max_size=8), max_size=30)


def token_array(prompts: Prompts) -> pa.ListArray:
    return pa.array([list(prompt) for prompt in prompts], pa.list_(pa.int32()))


def prompt_table(
    prompts: Sequence[Sequence[int] | None], num_truncated: int = 0, grammars: Sequence[str | None] = ()
) -> pa.Table:
    """Row i has id `row i`; a prompt that is None has failed, and the first `num_truncated` others were truncated.

    `grammars`: of each row, if any has one.
    """
    rows = []
    for ordinal, prompt in enumerate(prompts):
        is_truncated = prompt is not None and num_truncated > 0
        num_truncated -= is_truncated
        rows.append(
            {
                "ordinal": ordinal,
                "row_id": f"row {ordinal}",
                "token_ids": None if prompt is None else list(prompt),
                "num_truncated": 5 if is_truncated else 0,
                "status": "failed" if prompt is None else "truncated" if is_truncated else "ok",
                "error": "no text" if prompt is None else None,
                "grammar": grammars[ordinal] if grammars else None,
            }
        )
    return pa.Table.from_pylist(rows, PROMPTS_SCHEMA)


def write_files(
    folder: Path,
    prompts: Sequence[Sequence[int] | None],
    part_rows: int = 1000,
    num_truncated: int = 0,
    grammars: Sequence[str | None] = (),
) -> list[Path]:
    """The prompts as tokenised parts."""
    table = prompt_table(prompts, num_truncated, grammars)
    starts = range(0, max(1, len(prompts)), part_rows)
    files = [folder / f"part-{i:05}.parquet" for i in range(len(starts))]
    for path, start in zip(files, starts, strict=True):
        pq.write_table(table.slice(start, part_rows), path)
    return files


def summary_of(prompts: Sequence[Sequence[int] | None]) -> PlanSummary:
    with TemporaryDirectory() as folder:
        (Path(folder) / "work").mkdir()
        files = write_files(Path(folder), prompts)
        return preview_plan(files, Path(folder) / "work", PlanSettings(CostModel(8, True), 1))[0]


def num_common(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def num_tree_nodes(prompts: Prompts) -> int:
    """Unique tokens: nodes of a trie, built token by token."""
    root: dict = {}
    num_nodes = 0
    for prompt in prompts:
        node = root
        for token in prompt:
            num_nodes += token not in node
            node = node.setdefault(token, {})
    return num_nodes
