"""One run over all bad rows: each has its status and reason, and none touches another."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiny_runs
from bad_inputs.bad_rows import MAX_MODEL_LEN, MAX_TOKENS, ROWS, USER, table
from tiny_models import tiny_tokenizer

from batchpaged import api



@pytest.fixture(scope="module")
def run():
    folder = tiny_runs.new_path("bad-rows")
    folder.mkdir()
    pq.write_table(table(), folder / "rows.parquet", row_group_size=20)
    sections = {
        "input": {"path": str(folder / "rows.parquet"), "id_column": "id"},
        "prompt": {"system": "Be brief.", "user": USER},
        "model": {"id": str(tiny_runs.model()), "max_model_len": MAX_MODEL_LEN},
        "sampling": {"max_tokens": MAX_TOKENS},
        "evaluate": None,
        "gates": [],
    }
    return api.run(tiny_runs.pipeline(folder / "run", **sections))


@pytest.fixture(scope="module")
def rows(run):
    names = ["id", "completion", "finish_reason", "prompt_tokens", "completion_tokens", "status", "error", "prompt_hash"]
    return {row["id"]: row for row in tiny_runs.output(run.run_dir, names).to_pylist()}


@pytest.mark.parametrize("case", ROWS, ids=lambda row: row.name)
def test_a_row_has_its_status_and_reason(rows, case):
    row = rows[case.name]
    if case.reason is None:
        assert (row["status"], row["error"]) == ("ok", None)
        assert row["completion"] is not None and row["completion_tokens"] == MAX_TOKENS
    else:
        assert row["status"] == "failed" and case.reason in row["error"]
        assert row["completion"] is None and row["finish_reason"] is None and row["completion_tokens"] is None


def test_the_report_counts_them(run):
    assert run.exit_code == 0
    counts = run.report["rows"]
    assert counts["failed"] == sum(row.reason is not None for row in ROWS)
    assert counts["total"] == len(ROWS) == counts["failed"] + counts["succeeded"]
    assert sum(run.report["failures"].values()) == counts["failed"]


def test_reasons_quote_no_row(rows, run):
    said = json.dumps([row["error"] for row in rows.values()]) + (run.run_dir / "report.html").read_text()
    for text in ("caf", "xxx", "word word", "What?", "yyy"):
        assert text not in said


def test_input_columns_come_out_as_they_went_in(run):
    written = tiny_runs.output(run.run_dir)
    given = pq.read_table(run.run_dir.parent / "rows.parquet")  # Parquet itself changes some types
    for name in given.column_names:
        assert is_same(written[name].combine_chunks(), given[name].combine_chunks()), name


def is_same(read, given):
    """Also where values are NaN or no UTF-8."""
    if pa.types.is_struct(given.type):
        return all(map(is_same, read.flatten(), given.flatten()))
    if pa.types.is_floating(given.type):
        return str(read.to_pylist()) == str(given.to_pylist())
    return read.equals(given)


def test_only_the_chat_template_writes_special_tokens(run):
    tokenizer = tiny_tokenizer()
    [bos, end, pad] = tokenizer.convert_tokens_to_ids(["<bos>", "<end>", "<pad>"])
    for path in (run.run_dir / "prompts").glob("*.parquet"):
        for row in pq.read_table(path).to_pylist():
            ids = row["token_ids"]
            if ids is not None:
                assert (ids.count(bos), ids.count(end), ids.count(pad)) == (1, 2, 0)


def test_equal_prompts_are_equal(rows):
    assert rows["twin-one"]["prompt_hash"] == rows["twin-two"]["prompt_hash"]
    assert rows["twin-one"]["completion"] == rows["twin-two"]["completion"]
