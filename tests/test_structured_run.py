"""Whole runs with constrained completions."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiny_runs

import batchpaged
from batchpaged import api
from batchpaged.errors import ConfigError, InputError

SCHEMA = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "minItems": 2, "maxItems": 2}
CHOICE = json.dumps({"enum": ["yes", "no"]})
NUMBER = json.dumps({"type": "integer", "minimum": 10, "maximum": 99})


def pipeline(rows, structured, tmp_path, **sampling):
    path = tmp_path / "rows.parquet"
    if not path.exists():  # another version of it would be another run
        pq.write_table(pa.Table.from_pylist(rows), path)
    return tiny_runs.pipeline(
        tmp_path / "run",
        input={"path": str(path)},
        prompt={"user": "{{ q }}"},
        sampling={"max_tokens": 20, "structured": structured, **sampling},
        evaluate=None,
        gates=["structured.cut <= 0"],
    )


def test_rows_have_schemas_of_their_own(tmp_path):
    """Equal prompts are computed once where their schemas are equal too; a bad schema fails its row; null is no constraint."""
    schemas = [CHOICE, NUMBER, CHOICE, NUMBER, None, "nonsense", CHOICE]
    rows = [{"q": "One question?" if i < 6 else "Another?", "schema": schema} for i, schema in enumerate(schemas)]
    result = api.run(pipeline(rows, {"column": "schema"}, tmp_path))
    out = pq.read_table(tmp_path / "run/output").to_pylist()
    assert [row["status"] for row in out] == ["ok"] * 5 + ["failed", "ok"]
    assert "schema" in out[5]["error"] and out[5]["completion"] is None
    assert {json.loads(out[i]["completion"]) for i in (0, 2, 6)} <= {"yes", "no"}
    assert {10 <= json.loads(out[i]["completion"]) <= 99 for i in (1, 3)} == {True}
    assert (out[0]["completion"], out[1]["completion"]) == (out[2]["completion"], out[3]["completion"])
    assert result.report["rows"]["deduplicated"] == 2
    assert out[4]["finish_reason"] == "length" and result.exit_code == 1  # the free row is the one that was cut
    assert result.report["structured"] == {"complete": 5, "cut": 1, "forced_tokens": result.report["structured"]["forced_tokens"]}
    assert result.report["structured"]["forced_tokens"] > 0


def test_generate_takes_a_schema():
    rows = [{"q": f"Question {i}"} for i in range(3)]
    result = batchpaged.generate(
        rows,
        model={"id": str(tiny_runs.model()), "max_model_len": 128},
        prompt="{{ q }}",
        sampling={"max_tokens": 16, "structured": {"json_schema": SCHEMA}},
        engine={"kv_cache": 64, "device": "cpu"},
        cluster={"scheduler": tiny_runs.cluster().scheduler_address},
    )
    assert all(len(json.loads(row["completion"])) == 2 for row in result.data)
    assert result.report["structured"]["cut"] == 0


@pytest.mark.parametrize(
    ("structured", "error", "words"),
    [
        ({"json_schema": {"uniqueItems": True}}, ConfigError, "json_schema: .*uniqueItems"),
        ({"regex": "("}, ConfigError, "regex"),
        ({"column": "schema"}, (ConfigError, InputError), "no column of the input"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(structured, error, words, tmp_path):
    with pytest.raises(error, match=words):
        api.validate(pipeline([{"q": "a"}], structured, tmp_path))
    assert not (tmp_path / "run").exists()


def test_another_schema_is_another_run(tmp_path):
    rows = [{"q": "a"}]
    first = api.run(pipeline(rows, {"choices": ["yes", "no"]}, tmp_path)).report["run"]["fingerprint"]
    with pytest.raises(batchpaged.RefusedError, match="structured"):
        api.run(pipeline(rows, {"choices": ["no", "yes"]}, tmp_path))
    assert first != api.run(pipeline(rows, {"choices": ["no", "yes"]}, tmp_path), fresh=True).report["run"]["fingerprint"]
