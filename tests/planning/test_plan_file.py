"""The plan as a whole: from tokenised rows to units on disk and back."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings, strategies as st
from planning.prompts import PROMPT_LISTS, num_tree_nodes, prompt_table

from batchpaged.planning import plan_file
from batchpaged.planning.plan_file import (
    PROMPTS_SCHEMA,
    has_plan,
    plan_table,
    read_plan,
    read_prompts,
    read_unit,
    token_lists,
    write_plan,
)

PROMPTS = [[5, 6, 7], None, [5, 6], [9], [5, 6, 7], None, [5, 1, 2, 3, 4]] * 20


@settings(max_examples=60)
@given(st.lists(st.none() | st.lists(st.integers(0, 3), min_size=1, max_size=6), max_size=80), st.integers(1, 4))
def test_rows_are_in_planned_order_and_failed_ones_come_last(prompts: list[list[int] | None], num_workers: int) -> None:
    summary, rows, units = plan_table(prompt_table(prompts), max_tokens=8, num_workers=num_workers)
    runnable = [i for i, prompt in enumerate(prompts) if prompt is not None]
    failed = [i for i, prompt in enumerate(prompts) if prompt is None]
    assert rows["ordinal"].to_pylist() == sorted(runnable, key=lambda i: prompts[i]) + failed
    assert rows["token_ids"].to_pylist() == [prompts[i] for i in rows["ordinal"].to_pylist()]
    assert [row for unit in units for row in range(unit.start, unit.end)] == list(range(len(prompts)))
    assert [unit.index for unit in units] == list(range(summary.num_units))
    assert all(unit.end <= len(runnable) or unit.start >= len(runnable) for unit in units), "a unit mixes both"


@settings(max_examples=60)
@given(PROMPT_LISTS, st.integers(0, 3), st.integers(0, 5))
def test_the_summary_counts(prompts: list[list[int]], num_failed: int, num_truncated: int) -> None:
    table = prompt_table([*prompts, *[None] * num_failed], num_truncated)
    summary, _, units = plan_table(table, max_tokens=8, num_workers=2)
    assert summary.num_rows == len(prompts) + num_failed
    assert summary.num_failed == num_failed
    assert summary.num_truncated == min(num_truncated, len(prompts))
    assert summary.num_prompt_tokens == sum(map(len, prompts))
    assert summary.num_unique_tokens == num_tree_nodes(prompts)
    assert summary.num_duplicates == len(prompts) - len(set(map(tuple, prompts)))
    assert summary.longest_prompt == max(map(len, prompts), default=0)
    assert summary.num_units == len(units)


def test_the_longest_prompt_is_named() -> None:
    summary, _, _ = plan_table(prompt_table([[9, 9], [1, 2, 3, 4], [7]]), 8, 1)
    assert (summary.longest_prompt, summary.longest_row_id) == (4, "row 1")


def test_the_ceiling_of_the_hit_rate() -> None:
    summary, _, _ = plan_table(prompt_table([[1, 2, 3, 4], [1, 2, 3, 5], [1, 2]]), 8, 1)
    assert summary.hit_rate_ceiling == pytest.approx(1 - 5 / 10)


@pytest.mark.parametrize("prompts", [[], [None, None]])
def test_nothing_to_run_has_no_ceiling(prompts: list[None]) -> None:
    summary, rows, units = plan_table(prompt_table(prompts), 8, 1)
    assert summary.hit_rate_ceiling is None
    assert summary.longest_row_id is None
    assert (rows.num_rows, len(units)) == (len(prompts), min(1, len(prompts)))


def test_failed_rows_have_units_of_their_own_size() -> None:
    _, _, units = plan_table(prompt_table([[1]] + [None] * 25_000), 8, 1)
    assert [unit.end - unit.start for unit in units] == [1, 10_000, 10_000, 5_000]


@pytest.mark.parametrize("prompts", [PROMPTS, [], [None], [[1]]])
def test_what_is_written_is_read_again(tmp_path: Path, prompts: list[list[int] | None]) -> None:
    summary, rows, units = plan_table(prompt_table(prompts, num_truncated=3), 8, 2)
    write_plan(tmp_path, summary, rows, units)
    assert has_plan(tmp_path)
    assert read_plan(tmp_path) == (summary, units)
    assert pq.read_schema(tmp_path / "plan.parquet") == PROMPTS_SCHEMA
    for unit in units:
        assert read_unit(tmp_path, unit.index) == rows.slice(unit.start, unit.end - unit.start)


def test_token_lists() -> None:
    assert token_lists(prompt_table([[1, 2], None, [3]])) == [[1, 2], None, [3]]


def test_only_the_plan_is_left_in_the_folder(tmp_path: Path) -> None:
    write_plan(tmp_path, *plan_table(prompt_table(PROMPTS), 8, 2))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plan.json", "plan.parquet"]


@pytest.mark.parametrize("failing", ["write_text", "pq.ParquetWriter"])
def test_a_plan_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    """A crash at any place leaves no plan.json, and no half-written file beside it."""

    def crash(*arguments: object, **keywords: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(f"batchpaged.planning.plan_file.{failing}", crash)
    with pytest.raises(OSError, match="disk full"):
        write_plan(tmp_path, *plan_table(prompt_table(PROMPTS), 8, 2))
    assert not has_plan(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} <= {"plan.parquet"}


def test_a_second_plan_replaces_the_first_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = plan_table(prompt_table([[1, 2], [3]]), 8, 1)
    write_plan(tmp_path, *first)
    write_plan(tmp_path, *plan_table(prompt_table(PROMPTS), 8, 2))
    summary, units = read_plan(tmp_path)
    assert summary.num_rows == len(PROMPTS)
    assert sum(read_unit(tmp_path, unit.index).num_rows for unit in units) == len(PROMPTS)


def test_the_summary_is_plain_json(tmp_path: Path) -> None:
    write_plan(tmp_path, *plan_table(prompt_table(PROMPTS), 8, 2))
    content = json.loads((tmp_path / "plan.json").read_text())
    assert content["summary"]["num_rows"] == len(PROMPTS)
    assert content["units"][0][0] == 0


def test_prompts_are_read_in_the_order_of_their_files(tmp_path: Path) -> None:
    table = prompt_table(PROMPTS)
    files = [tmp_path / f"part-{i}.parquet" for i in range(3)]
    for i, path in enumerate(files):
        pq.write_table(table.slice(i * 50, 50), path)
    assert read_prompts(files)["ordinal"].to_pylist() == list(range(140))


def test_a_table_of_many_chunks_is_planned_like_one() -> None:
    table = prompt_table(PROMPTS)
    chunks = pa.concat_tables([table.slice(i, 7) for i in range(0, len(table), 7)])
    assert plan_file.plan_table(chunks, 8, 2) == plan_table(table.combine_chunks(), 8, 2)
