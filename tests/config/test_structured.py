"""`sampling.structured` in the pipeline file."""

import json

import pytest

from batchpaged.config import parse_pipeline
from batchpaged.errors import ConfigError

SCHEMA = {"type": "object", "properties": {"b": {"type": "null"}, "a": {"type": "boolean"}}}


def structured(smallest, **keys):
    return parse_pipeline({**smallest, "sampling": {"structured": keys}}).sampling.structured


def test_a_schema_is_kept_as_text_in_its_order_however_it_is_given(smallest, tmp_path):
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(SCHEMA, indent=4))
    forms = [SCHEMA, json.dumps(SCHEMA), str(path)]
    assert {structured(smallest, json_schema=form).json_schema for form in forms} == {json.dumps(SCHEMA)}


def test_the_file_of_a_schema_is_known_and_is_no_part_of_what_the_pipeline_says(smallest, tmp_path):
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(SCHEMA))
    assert structured(smallest, json_schema=str(path)).schema_file == str(path)
    assert [structured(smallest, **keys).schema_file for keys in ({"json_schema": SCHEMA}, {"regex": "a"})] == [None, None]
    written = structured(smallest, json_schema=str(path)).model_dump()
    assert written == structured(smallest, json_schema=SCHEMA).model_dump()


def test_a_pipeline_that_was_read_can_be_written_and_read_again(smallest):
    pipeline = parse_pipeline({**smallest, "sampling": {"structured": {"json_schema": SCHEMA}}})
    assert parse_pipeline(pipeline.model_dump(mode="json")) == pipeline
    hash(pipeline)  # workers keep prompts by pipeline


WRONG = [
    ({}, "needs exactly one of json_schema, regex, choices, column; found none"),
    ({"regex": "a", "choices": ["a"]}, "found regex and choices"),
    ({"json_schema": "nowhere.json"}, "path of a file"),
    ({"json_schema": "{"}, "is not JSON"),
    ({"json_schema": ["a"]}, "must be a JSON schema"),
    ({"json_schema": {"const": float("nan")}}, "a value that JSON does not have"),
    ({"choices": []}, 'must name at least one text, like ["yes", "no"]'),
    (
        {"choices": [True, False]},
        'choices = [true, false]: must be texts; YAML reads yes, no, on and off as true and false; write them in quotes: ["yes", "no"]',
    ),
    ({"choices": ["a", 1, 2, 3, 4, 5]}, 'must be texts; write them in quotes: ["a", "1", "2", "3", "4"] ...'),
    ({"choices": [""]}, "non-empty"),
    ({"json_shema": {}}, "json_schema"),
]


@pytest.mark.parametrize(("keys", "words"), WRONG)
def test_what_is_wrong_is_said(smallest, keys, words):
    with pytest.raises(ConfigError, match="sampling.structured") as refused:
        structured(smallest, **keys)
    assert words in str(refused.value)


def test_ignore_eos_is_refused_beside_it(smallest):
    with pytest.raises(ConfigError, match="sampling.ignore_eos"):
        parse_pipeline({**smallest, "sampling": {"ignore_eos": True, "structured": {"regex": "a"}}})
