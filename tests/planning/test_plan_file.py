"""The plan on disk: units that are found and read again, and a plan that is whole or not there."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from planning.prompts import num_tree_nodes, prompt_table, write_files

from batchpaged.errors import UnfinishedError
from batchpaged.planning.cost import CostModel
from batchpaged.planning.plan_file import PROMPTS_SCHEMA, has_plan, read_plan, read_unit, token_lists
from batchpaged.planning.planner import PlanSettings, make_plan
from batchpaged.planning.summary import PlanSummary
from batchpaged.planning.unit_writing import FAILED_UNIT_ROWS

PROMPTS = [[5, 6, 7], None, [5, 6], [9], [5, 6, 7], None, [5, 1, 2, 3, 4]] * 20
SETTINGS = PlanSettings(CostModel(8, True), num_workers=2, run_bytes=3000)


def write_plan(folder: Path, prompts: list[list[int] | None], settings: PlanSettings = SETTINGS) -> PlanSummary:
    for name in ("parts", "work"):
        (folder / name).mkdir()
    (folder / "run").mkdir(exist_ok=True)
    files = write_files(folder / "parts", prompts, part_rows=50, num_truncated=3)
    return make_plan(files, folder / "work", folder / "run", settings)


@pytest.mark.parametrize("prompts", [PROMPTS, [], [None], [[1]], [[]]])
def test_what_is_written_is_read_again(tmp_path: Path, prompts: list[list[int] | None]) -> None:
    summary = write_plan(tmp_path, prompts)
    run = tmp_path / "run"
    assert has_plan(run)
    read_summary, units = read_plan(run)
    assert (read_summary, len(units)) == (summary, summary.num_units)
    tables = [read_unit(run, unit.index) for unit in units]
    assert all(table.schema == PROMPTS_SCHEMA for table in tables)
    assert [len(table) for table in tables] == [unit.end - unit.start for unit in units]
    rows = pa.concat_tables([PROMPTS_SCHEMA.empty_table(), *tables]).sort_by("ordinal")
    assert rows.equals(prompt_table(prompts, num_truncated=3))


def test_the_longest_prompt_is_named(tmp_path: Path) -> None:
    summary = write_plan(tmp_path, [[9, 9], [1, 2, 3, 4], [7]])
    assert (summary.longest_prompt, summary.longest_row_id) == (4, "row 1")


def test_the_ceiling_of_the_hit_rate(tmp_path: Path) -> None:
    summary = write_plan(tmp_path, [[1, 2, 3, 4], [1, 2, 3, 5], [1, 2]])
    assert summary.hit_rate_ceiling == pytest.approx(1 - 5 / 10)
    assert summary.num_unique_tokens == num_tree_nodes([[1, 2, 3, 4], [1, 2, 3, 5], [1, 2]])


@pytest.mark.parametrize("prompts", [[], [None, None]])
def test_nothing_to_run_has_no_ceiling(tmp_path: Path, prompts: list[None]) -> None:
    summary = write_plan(tmp_path, prompts)
    assert (summary.hit_rate_ceiling, summary.longest_row_id) == (None, None)
    assert (summary.num_rows, summary.num_units) == (len(prompts), min(1, len(prompts)))


def test_failed_rows_have_units_of_their_own_size(tmp_path: Path) -> None:
    write_plan(tmp_path, [[1]] + [None] * (2 * FAILED_UNIT_ROWS + 5000))
    _, units = read_plan(tmp_path / "run")
    assert [unit.end - unit.start for unit in units] == [1, FAILED_UNIT_ROWS, FAILED_UNIT_ROWS, 5000]
    ordinals = [read_unit(tmp_path / "run", unit.index)["ordinal"] for unit in units]
    assert pa.chunked_array([chunk for o in ordinals for chunk in o.chunks]).to_pylist() == list(range(25_001))


def test_token_lists() -> None:
    assert token_lists(prompt_table([[1, 2], None, [3]])) == [[1, 2], None, [3]]


def test_only_the_plan_is_left_in_the_folder(tmp_path: Path) -> None:
    write_plan(tmp_path, PROMPTS)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["plan", "plan.json"]
    names = {path.name for path in (tmp_path / "run" / "plan").iterdir()}
    assert all(name.startswith("from-unit-") for name in names) and len(names) > 2


@pytest.mark.parametrize("failing", ["plan_file.write_text", "unit_writing.open_part", "plan_file.os.replace"])
def test_a_plan_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    """A crash at any place leaves no plan.json, and the next attempt is not disturbed by what the first left."""

    def crash(*arguments: object, **keywords: object) -> None:
        raise OSError("disk full")

    (tmp_path / "first").mkdir()
    with monkeypatch.context() as patch, pytest.raises(OSError, match="disk full"):
        patch.setattr(f"batchpaged.planning.{failing}", crash)
        write_plan(tmp_path / "first", PROMPTS)
    assert not has_plan(tmp_path / "first" / "run")
    (tmp_path / "first" / "run").rename(tmp_path / "run")
    summary = write_plan(tmp_path, PROMPTS)
    _, units = read_plan(tmp_path / "run")
    assert sum(len(read_unit(tmp_path / "run", unit.index)) for unit in units) == summary.num_rows


def test_what_an_earlier_attempt_left_is_replaced(tmp_path: Path) -> None:
    """It may have had other units: other files are gone, not only those of the same name."""
    (tmp_path / "run" / "plan").mkdir(parents=True)
    for unit in (0, 1, 2, 3, 500):
        (tmp_path / "run" / "plan" / f"from-unit-{unit:07}.parquet").write_bytes(b"old")
    write_plan(tmp_path, PROMPTS)
    _, units = read_plan(tmp_path / "run")
    assert sum(len(read_unit(tmp_path / "run", unit.index)) for unit in units) == len(PROMPTS)


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    write_plan(tmp_path, PROMPTS)
    (tmp_path / "run" / "plan" / "from-unit-0000000.parquet").unlink()
    with pytest.raises(UnfinishedError, match="lost the file of unit 0.*--fresh"):
        read_unit(tmp_path / "run", 0)


def test_the_plan_is_compact_json(tmp_path: Path) -> None:
    summary = write_plan(tmp_path, [[i % 50, i] for i in range(20_000)], PlanSettings(CostModel(8, True), 100))
    text = (tmp_path / "run" / "plan.json").read_text()
    content = json.loads(text)
    assert content["summary"]["num_rows"] == 20_000
    assert sum(content["units"]["num_rows"]) == 20_000 and len(content["units"]["cost"]) == summary.num_units > 500
    assert len(text) < 600 + 30 * summary.num_units
