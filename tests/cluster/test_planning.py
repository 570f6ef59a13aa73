"""Planning as a cluster does it: each step a task of one of two worker processes, each partition a range of prefixes."""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from distributed import Client
from planning.prompts import num_common, num_tree_nodes, write_files

from batchpaged.cluster import graph, local
from batchpaged.planning.cost import CostModel
from batchpaged.planning.plan_file import read_plan, read_unit, token_lists
from batchpaged.planning.planner import Each, PlanSettings, in_turn, make_plan
from batchpaged.planning.summary import PlanSummary
from batchpaged.planning.units import Unit

NUM_ROWS, NUM_DOCUMENTS = 6000, 40
SMALL = PlanSettings(CostModel(num_decode_tokens=8, is_greedy=True), num_workers=2, run_bytes=200_000)
WHOLE = replace(SMALL, run_bytes=1 << 30)  # one run, one partition

Plan = tuple[PlanSummary, list[Unit], pa.Table]


def make_prompts() -> list[list[int] | None]:
    """A third of all rows has one document, some rows are equal, and some have failed."""
    rng = random.Random(0)
    documents = [rng.choices(range(10**5), k=rng.randint(5, 60)) for _ in range(NUM_DOCUMENTS)]
    weights = [NUM_DOCUMENTS // 2, *[1] * (NUM_DOCUMENTS - 1)]
    rows = [[1, 2, 3, *document, *rng.choices(range(9), k=3)] for document in rng.choices(documents, weights, k=NUM_ROWS)]
    return [None if i % 1000 == 7 else row for i, row in enumerate(rows)]


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with local._quiet(), local._local_client(num_workers=2) as client, client.as_current():
        yield client


def planned(files: list[Path], folder: Path, settings: PlanSettings, each: Each) -> Plan:
    """-> summary, units, all rows in planned order."""
    work, run = folder / "work", folder / "run"
    work.mkdir(parents=True)
    run.mkdir()
    make_plan(files, work, run, settings, each)
    summary, units = read_plan(run)
    return summary, units, pa.concat_tables(read_unit(run, unit.index) for unit in units)


def test_a_plan_of_many_partitions_made_by_workers_is_that_of_one_machine(client: Client, tmp_path: Path) -> None:
    prompts, num_tasks = make_prompts(), {}
    files = write_files(tmp_path, prompts, part_rows=500)
    on_workers = graph._on_workers(client, SimpleNamespace(sitting="test"), engines=[])

    def counting(function, items):
        num_tasks[function.__name__] = len(items)
        return on_workers(function, items)

    summary, units, rows = planned(files, tmp_path / "workers", SMALL, counting)
    assert min(num_tasks[stage] for stage in ("sort_files", "order_partition", "write_partition")) >= 6
    assert (summary, units, rows) == planned(files, tmp_path / "one machine", SMALL, in_turn)

    whole, _, rows_of_whole = planned(files, tmp_path / "one partition", WHOLE, in_turn)
    assert rows == rows_of_whole
    assert replace(summary, num_units=0) == replace(whole, num_units=0)
    assert summary.num_unique_tokens == num_tree_nodes([prompt for prompt in prompts if prompt is not None])
    check_units(units, token_lists(rows), summary)


def check_units(units: list[Unit], ordered: list[list[int] | None], summary: PlanSummary) -> None:
    """What neighbours share is right where units, and so partitions, meet."""
    assert [row for unit in units for row in range(unit.start, unit.end)] == list(range(NUM_ROWS))
    assert sum(unit.num_prefilled for unit in units) == summary.num_unique_tokens  # equal prompts are computed once
    for unit in units[1:]:
        before, first = ordered[unit.start - 1 : unit.start + 1]
        assert unit.num_shared == (num_common(before, first) if first is not None else 0)
