"""prompt.reorder through whole runs: what the prompts hold, what the output records, and going on after an interruption."""

import random
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiny_runs

import batchpaged
from batchpaged import api
from batchpaged.planning.plan_file import read_plan

DOCUMENTS = [f"Document {i} says {i * i}." for i in range(6)]
FAILED = 5


def make_rows():
    shuffle = random.Random(1).shuffle
    rows = []
    for i in range(24):
        contexts = DOCUMENTS[i % 2 * 3 :][:3]
        shuffle(contexts)
        rows.append({"id": f"r{i}", "contexts": contexts, "question": None if i == FAILED else f"Why {i}?"})
    return rows


ROWS = make_rows()


@pytest.fixture(scope="module", autouse=True)
def several_parts():
    with tiny_runs.several_parts():
        yield


@pytest.fixture(scope="module")
def data():
    """Two files, so that counts are merged."""
    folder = tiny_runs.new_path("contexts")
    folder.mkdir()
    for name, rows in (("a", ROWS[:10]), ("b", ROWS[10:])):
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{name}.parquet")
    return folder


def pipeline(data, run_dir, reorder="contexts"):
    prompt = {"user": "{{ contexts | join(' ') }} {{ question }}", "reorder": reorder}
    sections = {"input": {"path": str(data), "id_column": "id"}, "prompt": prompt, "gates": []}
    return tiny_runs.pipeline(run_dir, **sections) | {"evaluate": None}


@pytest.fixture(scope="module")
def finished(data):
    return api.run(pipeline(data, tiny_runs.new_path("reordered")))


def test_the_recorded_order_gives_the_prompts_that_were_computed(finished, data, tmp_path):
    output = tiny_runs.output(finished.run_dir)
    assert output.schema.field("contexts_order").type == pa.list_(pa.int32())
    rows = output.to_pylist()
    assert [row["contexts"] for row in rows] == [row["contexts"] for row in ROWS]
    assert [i for i, row in enumerate(rows) if row["contexts_order"] is None] == [FAILED]
    in_order = [
        {**row, "contexts": [row["contexts"][i] for i in done["contexts_order"] or range(3)]}
        for row, done in zip(ROWS, rows, strict=True)
    ]
    pq.write_table(pa.Table.from_pylist(in_order), tmp_path / "in_order.parquet")
    plain = api.run(pipeline(tmp_path / "in_order.parquet", tmp_path / "run", reorder=None))
    expected = tiny_runs.output(plain.run_dir)
    for name in ("prompt_hash", "completion", "status", "error"):
        assert output[name].to_pylist() == expected[name].to_pylist()
    assert "contexts_order" not in expected.column_names


def test_rows_with_the_same_documents_share_them(finished, data):
    as_they_come = api.plan(pipeline(data, "runs/none", reorder=None)).summary
    planned = api.plan(pipeline(data, "runs/none")).summary
    assert planned.num_unique_tokens == read_plan(finished.run_dir)[0].num_unique_tokens
    assert planned.num_prompt_tokens == as_they_come.num_prompt_tokens
    assert planned.num_unique_tokens < 0.7 * as_they_come.num_unique_tokens


PART = "rows-000000000010-000000000024.parquet"
LOST = ["units", "plan", f"prompts/{PART}", "documents.parquet", f"documents/{PART}"]


@pytest.mark.parametrize("num_lost", range(len(LOST) + 1))
def test_an_interrupted_run_gives_the_same(finished, data, num_lost):
    run_dir = shutil.copytree(finished.run_dir, tiny_runs.new_path("interrupted"))
    shutil.rmtree(run_dir / "output")
    (run_dir / "report.json").unlink()
    (run_dir / "units" / "unit-000000.parquet").unlink()
    for name in LOST[:num_lost]:
        remove(run_dir, name)
    api.run(pipeline(data, run_dir))
    before, after = tiny_runs.output(finished.run_dir), tiny_runs.output(run_dir)
    columns = [name for name in before.column_names if name != "cached_tokens"]
    assert after.select(columns).to_pylist() == before.select(columns).to_pylist()


def remove(run_dir, name):
    if name == "plan":
        (run_dir / "plan.json").unlink()
        shutil.rmtree(run_dir / "plan")
    elif name == "units":
        for path in (run_dir / "units").glob("*.parquet"):
            path.unlink()
    else:
        (run_dir / name).unlink()


def test_it_is_part_of_what_a_run_is(finished, data):
    with pytest.raises(batchpaged.RefusedError, match="prompt.reorder changed"):
        api.run(pipeline(data, finished.run_dir, reorder=None))


def test_damaged_counts_are_named(finished, data):
    run_dir = shutil.copytree(finished.run_dir, tiny_runs.new_path("damaged"))
    for name in ("report.json", "documents.parquet"):
        (run_dir / name).unlink()
    (run_dir / "documents.parquet").write_bytes(b"no Parquet")
    with pytest.raises(batchpaged.UnfinishedError, match="documents.parquet is damaged .* --fresh"):
        api.run(pipeline(data, run_dir))


def test_rows_in_memory_get_the_column_too(data):
    prompt = {"user": "{{ contexts | join(' ') }} {{ question }}", "reorder": "contexts"}
    cluster = {"scheduler": tiny_runs.cluster().scheduler_address}
    sections = {"model": {"id": str(tiny_runs.model()), "max_model_len": 320}, "sampling": {"max_tokens": 1}}
    made = batchpaged.generate(ROWS[:4], prompt=prompt, cluster=cluster, engine={"kv_cache": 100}, **sections).data
    used = [[row["contexts"][i] for i in row["contexts_order"]] for row in made]
    assert used[0] == used[2] and used[1] == used[3]
    assert [row["contexts"] for row in made] == [row["contexts"] for row in ROWS[:4]]
