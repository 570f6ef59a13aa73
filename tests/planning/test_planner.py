"""The external sort against the order in memory: however files, runs and partitions fall, the plan is the same."""

import random
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st
from planning.prompts import num_common, num_tree_nodes, prompt_table, write_files

from batchpaged.errors import UnfinishedError
from batchpaged.planning import planner
from batchpaged.planning.cost import CostModel
from batchpaged.planning.order import plan_order
from batchpaged.planning.plan_file import PROMPTS_SCHEMA, has_plan, read_plan, read_unit
from batchpaged.planning.planner import PlanSettings, make_plan, preview_plan
from batchpaged.planning.sorted_runs import FileSize, choose_run_bytes, choose_sample_bytes
from batchpaged.planning.summary import num_prefix_groups
from batchpaged.planning.units import cut_units

COST = CostModel(num_decode_tokens=8, is_greedy=True)
TOKENS = st.integers(0, 2) | st.sampled_from([255, 256, 2**24, 2**31 - 1])
# Prompts from a few documents, so that most share something and some are equal.
DOCUMENTS = st.lists(st.lists(TOKENS, max_size=6), min_size=1, max_size=4)


@st.composite
def data_sets(draw: st.DrawFn) -> list[list[int] | None]:
    documents = draw(DOCUMENTS)
    row = st.tuples(st.sampled_from(documents), st.lists(TOKENS, max_size=3)).map(lambda pair: pair[0] + pair[1])
    return draw(st.lists(st.none() | row, max_size=80))


def planned(folder: Path, prompts: list[list[int] | None], part_rows: int = 7, run_bytes: int = 1000, workers: int = 2):
    """-> summary, units, all rows in planned order."""
    (folder / "work").mkdir()
    (folder / "run").mkdir()
    files = write_files(folder, prompts, part_rows, num_truncated=3)
    summary = make_plan(files, folder / "work", folder / "run", PlanSettings(COST, workers, run_bytes))
    assert has_plan(folder / "run")
    read_summary, units = read_plan(folder / "run")
    assert read_summary == summary
    rows = [row for unit in units for row in read_unit(folder / "run", unit.index).to_pylist()]
    return summary, units, rows


@settings(max_examples=120)
@given(data_sets(), st.integers(1, 30), st.integers(1, 3000), st.integers(1, 3))
def test_the_plan_is_that_of_one_sort_in_memory(
    tmp_path_factory: pytest.TempPathFactory, prompts: list[list[int] | None], part_rows: int, run_bytes: int, workers: int
) -> None:
    summary, units, rows = planned(tmp_path_factory.mktemp("plan"), prompts, part_rows, run_bytes, workers)
    runnable = [i for i, prompt in enumerate(prompts) if prompt is not None]
    failed = [i for i, prompt in enumerate(prompts) if prompt is None]
    table = prompt_table(prompts, num_truncated=3)
    expected = [*sorted(runnable, key=lambda i: prompts[i]), *failed]
    assert rows == table.take(pa.array(expected, pa.int64())).to_pylist()
    assert [row for unit in units for row in range(unit.start, unit.end)] == list(range(len(prompts)))
    assert [unit.index for unit in units] == list(range(summary.num_units))
    check_units(units, [prompts[i] for i in expected])


def check_units(units: list, ordered: list[list[int] | None]) -> None:
    for unit in units:
        if ordered[unit.start] is None:
            assert (unit.cost, unit.num_prefilled, unit.num_shared) == (0, 0, 0)
            assert not any(ordered[unit.start : unit.end]), "failed rows have units of their own"
            continue
        before = ordered[: unit.start]
        own = ordered[unit.start : unit.end]
        assert unit.num_prefilled == num_tree_nodes([*before, *own]) - num_tree_nodes(before)
        assert unit.num_shared == (num_common(before[-1], own[0]) if before else 0)


@settings(max_examples=120)
@given(data_sets(), st.integers(1, 30), st.integers(1, 3000))
def test_the_summary_is_that_of_one_sort_in_memory(
    tmp_path_factory: pytest.TempPathFactory, prompts: list[list[int] | None], part_rows: int, run_bytes: int
) -> None:
    folder = tmp_path_factory.mktemp("plan")
    files = write_files(folder, prompts, part_rows, num_truncated=3)
    (folder / "work").mkdir()
    summary, units = preview_plan(files, folder / "work", PlanSettings(COST, 2, run_bytes))
    runnable = [prompt for prompt in prompts if prompt is not None]
    order = plan_order(prompt_table(runnable)["token_ids"].combine_chunks())
    assert summary.num_rows == len(prompts)
    assert summary.num_failed == len(prompts) - len(runnable)
    assert summary.num_truncated == min(3, len(runnable))
    assert summary.num_prompt_tokens == sum(map(len, runnable))
    assert summary.num_unique_tokens == num_tree_nodes(runnable)
    assert summary.num_duplicates == len(runnable) - len(set(map(tuple, runnable)))
    assert summary.num_prefix_groups == num_prefix_groups(order)
    assert summary.longest_prompt == max(map(len, runnable), default=0)
    assert summary.num_units == len(units)
    in_memory = cut_units(order, COST, 2)
    assert sum(u.cost for u in units) == pytest.approx(sum(u.cost for u in in_memory))


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([None, "a", "b"])), min_size=1, max_size=60), st.integers(1, 600))
def test_rows_with_other_grammars_are_no_duplicates_wherever_partitions_fall(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, str | None]], run_bytes: int
) -> None:
    folder = tmp_path_factory.mktemp("plan")
    (folder / "work").mkdir()
    files = write_files(folder, [[1, prompt] for prompt, _ in rows], 7, grammars=[grammar for _, grammar in rows])
    summary, _ = preview_plan(files, folder / "work", PlanSettings(COST, 2, run_bytes))
    assert summary.num_duplicates == len(rows) - len(set(rows))


@settings(max_examples=40)
@given(data_sets(), st.integers(1, 3000))
def test_looking_at_a_plan_gives_the_units_that_are_written(
    tmp_path_factory: pytest.TempPathFactory, prompts: list[list[int] | None], run_bytes: int
) -> None:
    folder = tmp_path_factory.mktemp("plan")
    summary, units, _ = planned(folder, prompts, 7, run_bytes)
    (folder / "again").mkdir()
    files = sorted(folder.glob("part-*.parquet"))
    assert preview_plan(files, folder / "again", PlanSettings(COST, 2, run_bytes)) == (summary, units)


def sizes_of_partitions(folder: Path, prompts: list[list[int]], run_bytes: int) -> list[int]:
    (folder / "work").mkdir()
    files = write_files(folder, prompts, 500)
    ordered = planner._order(files, folder / "work", PlanSettings(COST, 1, run_bytes), planner.in_turn)
    return [facts.num_rows for facts in ordered.facts]


SYSTEM = list(range(1000, 1040))
SKEWED = {
    "a shared system prompt": lambda rng: [*SYSTEM, *rng.choices(range(50), k=10)],
    "a document with a third of all rows": lambda rng: [
        *SYSTEM,
        *([7] * 20 if rng.random() < 0.33 else rng.choices(range(50), k=20)),
        *rng.choices(range(50), k=4),
    ],
    "one prompt for a third of all rows": lambda rng: SYSTEM if rng.random() < 0.33 else [*SYSTEM, rng.randrange(999)],
    "one prompt for all rows": lambda rng: SYSTEM,
}


@pytest.mark.parametrize("kind", SKEWED)
@pytest.mark.parametrize("is_sorted", [False, True])
def test_partitions_are_even_whatever_rows_share(tmp_path: Path, kind: str, is_sorted: bool) -> None:
    rng = random.Random(1)
    prompts = [SKEWED[kind](rng) for _ in range(4000)]
    sizes = sizes_of_partitions(tmp_path, sorted(prompts) if is_sorted else prompts, run_bytes=120_000)
    assert len(sizes) >= 7
    assert max(sizes) < 1.5 * sum(sizes) / len(sizes)


def test_a_file_larger_than_a_run_becomes_several(tmp_path: Path) -> None:
    prompts = [[i % 7, i] for i in range(30_000)]
    (tmp_path / "one").mkdir()
    summary, _, rows = planned(tmp_path / "one", prompts, part_rows=30_000, run_bytes=700_000)
    assert len(list((tmp_path / "one" / "work").glob("run-*.samples"))) > 1
    assert [row["ordinal"] for row in rows] == sorted(range(30_000), key=lambda i: prompts[i])
    assert summary.num_unique_tokens == 30_000 + 7


def test_steps_may_run_in_any_order_and_twice(tmp_path: Path) -> None:
    """As a cluster runs them."""
    prompts = [[i % 5, i % 3, i] for i in range(300)] + [None] * 3
    files = write_files(tmp_path, prompts, 20)

    def backwards_twice(function, items):
        for item in reversed(items):
            function(*item)
        return [function(*item) for item in reversed(items)][::-1]

    found = []
    for name, each in (("a", planner.in_turn), ("b", backwards_twice)):
        work, folder = tmp_path / f"work-{name}", tmp_path / name
        work.mkdir(), folder.mkdir()
        make_plan(files, work, folder, PlanSettings(COST, 2, 2000), each)
        units = read_plan(folder)[1]
        found.append([read_unit(folder, unit.index) for unit in units])
    assert found[0] == found[1] and found[0][0].schema == PROMPTS_SCHEMA


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    files = write_files(tmp_path, [[1], [2]], 1)
    files[1].write_bytes(b"damaged")
    with pytest.raises(UnfinishedError, match="part-00001.parquet is damaged"):
        preview_plan(files, tmp_path, PlanSettings(COST, 1))


def test_samples_of_long_prompts_stay_small_together() -> None:
    long = [FileSize(num_rows=1000, num_bytes=100_000_000)] * 1000  # 100 kB a row
    num_samples = sum(size.num_bytes for size in long) / choose_sample_bytes(long, 2**27)
    assert 0.9 * 2**27 < num_samples * 100_000 < 1.01 * 2**27
    short = [FileSize(num_rows=1000, num_bytes=100_000)] * 1000
    assert choose_sample_bytes(short, 2**27) == 2**27 // 256


@pytest.mark.parametrize(
    ("mebibytes", "most", "expected"), [(5, 128, 16), (400, 128, 50), (400, 30, 30), (9000, 128, 128), (5, 1, 1)]
)
def test_runs_grow_with_the_data_set_to_what_a_step_may_take(mebibytes: int, most: int, expected: int) -> None:
    halves = [FileSize(num_rows=1, num_bytes=mebibytes << 19)] * 2
    assert choose_run_bytes(halves, most << 20) == expected << 20
