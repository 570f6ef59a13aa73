"""Columns that say what a row's completion must be."""

import json

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from batchpaged.config import StructuredConfig, parse_pipeline
from batchpaged.dataset.constraint_column import check_constraint_column, row_grammars
from batchpaged.dataset.prompts import PROMPT_SCHEMA
from batchpaged.dataset.row_settings import add_row_settings
from batchpaged.errors import InputError, RowError

KEYWORDS = (
    "type properties required items prefixItems minItems maxItems anyOf oneOf allOf enum const pattern format minLength $ref $defs "
    "minimum multipleOf additionalProperties minProperties patternProperties not uniqueItems x-guidance"
).split()
GOOD = '{"type": "boolean"}'


def pipeline(model={"id": "some"}, **sampling):
    return parse_pipeline(
        {
            "input": {"path": "a.parquet"},
            "prompt": {"text_column": "text"},
            "model": model,
            "output": {"path": "out"},
            "sampling": sampling,
        }
    )


def prompts(*statuses):
    rows = [
        {"token_ids": None if s == "failed" else [1, i], "num_truncated": 0, "status": s, "error": s == "failed" and "no text" or None}
        for i, s in enumerate(statuses)
    ]
    return pa.Table.from_pylist(rows, PROMPT_SCHEMA)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())])
def test_a_bad_schema_fails_its_row_and_no_other(kind):
    schemas = pa.array([GOOD, None, "{", GOOD, '{"not": {}}', "[]", '{"type": "secret"}']).cast(kind)
    given = prompts("ok", "ok", "ok", "failed", "ok", "truncated", "ok")
    made = add_row_settings(given, pa.table({"schema": schemas}), pipeline(structured={"column": "schema"}))
    rows = made.to_pylist()
    assert [row["status"] for row in rows] == ["ok", "ok", *["failed"] * 5]
    assert rows[0]["grammar"] and rows[1]["grammar"] is None
    assert "not JSON" in rows[2]["error"] and rows[3]["error"] == "no text"
    assert "the schema needs not, which llguidance does not support" in rows[4]["error"] and "no JSON object" in rows[5]["error"]
    assert "of 18 characters, cannot be followed" in rows[6]["error"]  # and not what the row says
    assert all(row["token_ids"] is None for row in rows[2:])
    assert made.select(PROMPT_SCHEMA.names).slice(0, 2).equals(given.slice(0, 2))


def test_an_unknown_adapter_fails_its_row_and_null_is_the_base_model():
    model = {"id": "some", "adapters": {"b": "folder-b", "a": "folder-a"}}
    names = pa.array(["a", "b", None, "secret", "a"]).dictionary_encode()
    given, rows = prompts("ok", "ok", "ok", "ok", "failed"), pa.table({"who": names})
    made = add_row_settings(given, rows, pipeline(model={**model, "adapter_column": "who"}))
    assert made["adapter"].to_pylist() == [0, 1, None, None, 0]
    assert made["status"].to_pylist() == ["ok", "ok", "ok", "failed", "failed"]
    assert "none of model.adapters (a, b)" in made["error"][3].as_py() and "secret" not in made["error"][3].as_py()
    made = add_row_settings(given, rows, pipeline(model={**model, "adapter": "b"}))
    assert made["adapter"].to_pylist() == [1] * 5
    assert add_row_settings(given, rows, pipeline())["adapter"].null_count == 5


def test_without_the_column_no_row_has_a_grammar_of_its_own():
    made = add_row_settings(prompts("ok", "failed"), pa.table({"a": [1, 2]}), pipeline(structured={"regex": "a"}))
    assert made["grammar"].to_pylist() == [None, None]


@pytest.mark.parametrize(("column", "words"), [("shema", "no column of the input"), ("number", "must be a string of JSON")])
def test_a_column_that_cannot_be_is_refused_before_any_work(column, words):
    with pytest.raises(InputError, match=words):
        check_constraint_column(StructuredConfig(column=column), pa.schema([("schema", pa.string()), ("number", pa.int64())]))


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 9) | st.text(max_size=3) | st.sampled_from(["string", "object", "a+", "(", "date"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYWORDS) | st.text(max_size=2), inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(st.lists(_VALUES.map(json.dumps) | st.text(max_size=5), min_size=1, max_size=4))
def test_whatever_a_row_says_is_a_grammar_or_the_row_s_failure(texts):
    for outcome in row_grammars(pa.table({"schema": pa.array(texts)}), "schema"):
        assert isinstance(outcome, str | RowError)


@pytest.mark.parametrize("depth", [300, 5000])
def test_a_schema_nested_too_deeply_fails_its_row(depth):
    text = '{"items":' * depth + "{}" + "}" * depth
    [outcome] = row_grammars(pa.table({"schema": [text]}), "schema")
    assert isinstance(outcome, str | RowError)
