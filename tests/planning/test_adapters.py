"""Rows of different adapters share nothing, whatever their prompts."""

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings, strategies as st
from planning.prompts import num_tree_nodes, prompt_table, token_array

from batchpaged.planning.cost import CostModel
from batchpaged.planning.keys import MAX_TOKEN_ID, as_keys, mark, marked, num_common, unmarked
from batchpaged.planning.plan_file import read_plan, read_unit
from batchpaged.planning.planner import PlanSettings, make_plan

_PROMPTS = st.lists(st.integers(0, 2) | st.sampled_from([256, MAX_TOKEN_ID - 1]), max_size=5)
_ADAPTERS = st.none() | st.sampled_from([0, 1, 499])
ROWS = st.lists(st.tuples(_ADAPTERS, _PROMPTS), max_size=40)


def number(adapter):
    return -1 if adapter is None else adapter


@given(ROWS)
def test_marks_come_off_again(rows):
    keys, adapters = as_keys(token_array([p for _, p in rows])), pa.array([a for a, _ in rows], pa.int16())
    made = marked(keys, adapters)
    assert unmarked(made, adapters).equals(keys)
    for key, (adapter, prompt) in zip(made.to_pylist(), rows, strict=True):
        assert key == as_keys(token_array([mark(prompt, adapter) if prompt else []]))[0].as_py()


@settings(max_examples=25, deadline=None)
@given(ROWS, st.integers(1, 20), st.integers(1, 2000))
def test_the_plan_is_by_adapter_first(tmp_path_factory, rows, part_rows, run_bytes):
    folder = tmp_path_factory.mktemp("plan")
    for name in ("work", "run"):
        (folder / name).mkdir()
    table = prompt_table([prompt for _, prompt in rows])
    place = table.schema.get_field_index("adapter")
    table = table.set_column(place, "adapter", pa.array([adapter for adapter, _ in rows], pa.int16()))
    files = [folder / f"part-{start}.parquet" for start in range(0, max(1, len(rows)), part_rows)]
    for path, start in zip(files, range(0, max(1, len(rows)), part_rows), strict=True):
        pq.write_table(table.slice(start, part_rows), path)
    summary = make_plan(files, folder / "work", folder / "run", PlanSettings(CostModel(8, True), 2, run_bytes))
    planned = [row for unit in read_plan(folder / "run")[1] for row in read_unit(folder / "run", unit.index).to_pylist()]
    by_place = sorted(range(len(rows)), key=lambda i: (number(rows[i][0]) if rows[i][1] else -1, rows[i][1]))
    kept = [(row["adapter"], row["token_ids"]) for row in planned if row["token_ids"]]
    assert kept == [rows[i] for i in by_place if rows[i][1]]
    prompts = {adapter: [p for a, p in rows if a == adapter] for adapter in {a for a, _ in rows}}
    assert summary.num_unique_tokens == sum(map(num_tree_nodes, prompts.values()))


def test_equal_prompts_of_two_adapters_have_nothing_in_common():
    keys = marked(as_keys(token_array([[5, 6], [5, 6], [5, 6]])), pa.array([0, 1, None], pa.int16())).to_pylist()
    assert [num_common(a, b) for a, b in zip(keys, keys[1:] + keys[:1], strict=True)] == [0, 0, 0]
