"""Log-probabilities in the output: typed columns, the same with and without the cache."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiny_runs

from batchpaged import api
from batchpaged.dataset.schema import OUTPUT_COLUMNS, TOKENS_LOGPROBS
from batchpaged.errors import RefusedError
from batchpaged.run.unit_file import check_unit

COLUMNS = ["completion_logprobs", "prompt_logprobs"]
SAMPLING = {"max_tokens": 3, "temperature": 0.8, "logprobs": 2, "prompt_logprobs": 3}


def run(prefix_cache: bool) -> api.RunResult:
    engine = {"kv_cache": 300, "max_batch_tokens": 256, "device": "cpu", "prefix_cache": prefix_cache}
    pipeline = tiny_runs.pipeline(tiny_runs.new_path("logprobs"), sampling=SAMPLING, engine=engine, gates=[])
    return api.run(pipeline)


def test_columns_are_typed_and_do_not_depend_on_the_cache() -> None:
    cached, uncached = run(True), run(False)
    assert cached.report["tokens"]["cached"] > 0 == uncached.report["tokens"]["cached"]
    misses = cached.report["misses"]
    assert misses["last_token"] > 0 == misses["evicted"]
    table = tiny_runs.output(cached.run_dir)
    assert table.column_names[-len(OUTPUT_COLUMNS) - 2 :] == [*OUTPUT_COLUMNS.names, *COLUMNS]
    assert all(table.schema.field(name).type.equals(TOKENS_LOGPROBS) for name in COLUMNS)
    rows = table.select([*OUTPUT_COLUMNS.names, *COLUMNS]).to_pylist()
    others = tiny_runs.output(uncached.run_dir, COLUMNS).to_pylist()
    for row, other in zip(rows, others, strict=True):
        check_row(row, other)
    for path in (cached.run_dir / "units").glob("unit-*.parquet"):
        check_unit(path)


def check_row(row: dict, other: dict) -> None:
    if row["status"] == "failed":
        assert row["completion_logprobs"] is None and row["prompt_logprobs"] is None
        return
    assert len(row["prompt_logprobs"]) == row["prompt_tokens"]
    assert len(row["completion_logprobs"]) == row["completion_tokens"]
    first, *rest = row["prompt_logprobs"]
    assert (first["logprob"], first["rank"], first["top"]) == (None, None, None)
    assert {len(item["top"]) for item in rest} == {3}
    assert {len(item["top"]) for item in row["completion_logprobs"]} == {2}
    for name in COLUMNS:
        assert [item["token_id"] for item in row[name]] == [item["token_id"] for item in other[name]]
        ours, theirs = ([item["logprob"] or 0 for item in each[name]] for each in (row, other))
        np.testing.assert_allclose(ours, theirs, atol=1e-4)
    assert all(item["logprob"] <= item["top"][0]["logprob"] for item in [*rest, *row["completion_logprobs"]])


def test_an_input_column_of_the_same_name_is_refused(tmp_path) -> None:
    pq.write_table(pa.table({"q": ["a"], "prompt_logprobs": ["b"]}), tmp_path / "rows.parquet")
    sections = {"input": {"path": str(tmp_path / "rows.parquet")}, "prompt": {"user": "{{ q }}"}}
    pipeline = tiny_runs.pipeline(tiny_runs.new_path("clash"), sampling=SAMPLING, evaluate=None, gates=[], **sections)
    with pytest.raises(RefusedError, match="'prompt_logprobs' have the name of an output column"):
        api.validate(pipeline)
    api.validate({**pipeline, "sampling": {}})
