import os
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from batchpaged.dataset.schema import OUTPUT_COLUMNS
from batchpaged.engine.engine import Completion, Output
from batchpaged.run.unit_file import (
    DamagedUnit,
    check_unit,
    last_of_each_session,
    prompt_hash,
    read_unit_facts,
    result_row,
    unit_schema,
    write_unit,
)

PROMPT = {"ordinal": 7, "row_id": "r7", "token_ids": [1, 2, 300], "num_truncated": 0, "status": "ok", "error": None}
COMPLETION = Completion((0, 0), (Output("text", (5, 6), "stop"),), 3, 2, 1, 0)


def test_a_computed_row():
    assert result_row(PROMPT, COMPLETION) == {
        "ordinal": 7,
        "row_id": "r7",
        "completion": "text",
        "finish_reason": "stop",
        "prompt_tokens": 3,
        "cached_tokens": 2,
        "completion_tokens": 2,
        "status": "ok",
        "error": None,
        "prompt_hash": prompt_hash([1, 2, 300]),
    }


def test_a_truncated_row_keeps_its_reason():
    row = result_row({**PROMPT, "status": "truncated", "error": "too long"}, COMPLETION)
    assert (row["status"], row["error"], row["completion"]) == ("truncated", "too long", "text")


def test_a_row_without_a_prompt():
    row = result_row({**PROMPT, "token_ids": None, "status": "failed", "error": "null"}, None)
    assert {name for name, value in row.items() if value is not None} == {"ordinal", "row_id", "status", "error"}


def test_a_row_that_the_engine_refused():
    row = result_row(PROMPT, "can never fit")
    assert (row["status"], row["error"], row["completion"]) == ("failed", "can never fit", None)
    assert row["prompt_tokens"] == 3


def test_the_prompt_hash_is_of_little_endian_int32():
    assert prompt_hash([1, 2, 300]) == xxhash.xxh3_128_hexdigest(bytes([1, 0, 0, 0, 2, 0, 0, 0, 44, 1, 0, 0]))


def test_rows_and_facts_are_in_one_file(tmp_path):
    facts = {"unit": 3, "num_rows": 1, "timeline": [{"time": 1.5}], "worker": "ä"}
    write_unit(tmp_path / "unit", [result_row(PROMPT, COMPLETION)], facts)
    assert read_unit_facts(tmp_path / "unit") == facts
    table = pq.read_table(tmp_path / "unit")
    assert table.schema.names == unit_schema().names == ["ordinal", "row_id", *OUTPUT_COLUMNS.names]
    assert table["completion"].to_pylist() == ["text"]
    assert os.listdir(tmp_path) == ["unit"]


def test_an_interrupted_write_leaves_nothing(tmp_path, monkeypatch):
    def fail(table, path, **kwargs):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("batchpaged.run.unit_file.pq.write_table", fail)
    with pytest.raises(OSError):
        write_unit(tmp_path / "unit", [], {"num_rows": 0})
    assert os.listdir(tmp_path) == []


def _without_facts(path):
    pq.write_table(pq.read_table(path).replace_schema_metadata(None), path)


def _with_other_rows(path):
    table = pq.read_table(path)
    pq.write_table(pa.concat_tables([table, table]), path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"PAR1"),
        lambda path: os.truncate(path, path.stat().st_size - 5),
        lambda path: path.write_bytes(path.read_bytes()[:-60] + b"\xff" * 52 + path.read_bytes()[-8:]),
        _without_facts,
        _with_other_rows,
    ],
)
def test_a_damaged_file_is_known(tmp_path, damage):
    path = tmp_path / "unit"
    write_unit(path, [result_row(PROMPT, COMPLETION)], {"num_rows": 1})
    damage(path)
    with pytest.raises(DamagedUnit, match="unit is damaged"):
        read_unit_facts(path)


def test_no_flipped_bit_goes_unnoticed(tmp_path):
    """Wherever it is, it is found, or rows and facts are what they were."""
    path, chooser = tmp_path / "unit", random.Random(0)
    failed = {**PROMPT, "token_ids": None, "status": "failed", "error": "null"}
    rows = [result_row({**PROMPT, "ordinal": i}, COMPLETION) for i in range(20)] + [result_row(failed, None)]
    facts = {"num_rows": 21, "timeline": [{"time": 1.5}] * 9}
    write_unit(path, rows, facts)
    check_unit(path)
    content, num_found = path.read_bytes(), 0
    for place in chooser.sample(range(len(content)), 600):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1 << chooser.randrange(8)]) + content[place + 1 :])
        try:
            check_unit(path)
            assert read_unit_facts(path) == facts and pq.ParquetFile(path).read(unit_schema().names).to_pylist() == rows
        except DamagedUnit:
            num_found += 1
    assert num_found > 350  # the others are in names and statistics that nobody reads


def test_the_last_unit_of_a_session_has_its_sums():
    facts = [
        {"session": "a", "num_steps": 5, "num_completion_tokens": 5, "n": 1},
        {"session": "b", "num_steps": 1, "num_completion_tokens": 1, "n": 2},
        {"session": "a", "num_steps": 9, "num_completion_tokens": 9, "n": 3},
        {"session": "a", "num_steps": 9, "num_completion_tokens": 8, "n": 6},  # ended in the same step, before it
        {"session": "a", "num_steps": 7, "num_completion_tokens": 7, "n": 4},
        {"n": 5},  # a unit of failed rows
    ]
    assert [item["n"] for item in last_of_each_session(facts)] == [3, 2]
    assert last_of_each_session([]) == []
