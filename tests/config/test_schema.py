"""The schema for editors, and the reference that is written by hand."""

import json
import re
from pathlib import Path

import pytest

from batchpaged.config import load_pipeline, parse_pipeline, pipeline_json_schema
from batchpaged.config.schema import all_keys, allowed, node_at

ROOT = Path(__file__).parents[2]
REFERENCE = (ROOT / "docs/pipeline-file.md").read_text(encoding="utf-8")


def test_the_exported_schema_is_current():
    exported = json.loads((ROOT / "docs/pipeline.schema.json").read_text(encoding="utf-8"))
    assert exported == pipeline_json_schema(), "write it anew: batchpaged validate --schema > docs/pipeline.schema.json"


def test_callers_get_their_own_copy():
    pipeline_json_schema().clear()
    assert pipeline_json_schema()["required"] == ["input", "model", "output"]


@pytest.mark.parametrize("key", all_keys())
def test_every_key_has_a_description_of_one_line(key):
    node = _field(key)
    assert node["description"] and "\n" not in node["description"] and not node["description"].endswith(".")


def _field(key):
    """The node as its section declares it: a section's own description is the model's docstring."""
    section, _, name = key.rpartition(".")
    return node_at(tuple(section.split(".")) if section else ())["properties"][name]


@pytest.mark.parametrize("key", all_keys())
def test_the_reference_has_every_key_with_its_default(key):
    section, _, name = key.rpartition(".")
    node = node_at(tuple(key.split(".")))
    if "properties" in node:
        assert f"## {key}\n" in REFERENCE
        return
    row = re.search(rf"^\| `{re.escape(key)}` \|([^|]*)\|([^|]*)\|", REFERENCE, re.MULTILINE)
    assert row, f"docs/pipeline-file.md has no row for {key}"
    is_required = name in node_at(tuple(section.split(".")) if section else ()).get("required", ())
    assert row[2].strip() == ("required" if is_required else _as_yaml(key, node))


def _as_yaml(key, node):
    if key == "name":
        return "the file's"
    return f"`{json.dumps(node['default']).strip(chr(34))}`".replace('"', "")


def test_the_reference_has_no_other_keys():
    named = re.findall(r"^\| `([a-z_.]+)` \|", REFERENCE, re.MULTILINE)
    assert set(named) <= set(all_keys()) and len(named) == len(set(named))


def test_the_examples_in_the_reference_are_pipelines():
    examples = re.findall(r"^```yaml\n(.*?)^```", REFERENCE, re.MULTILINE | re.DOTALL)
    assert examples
    for example in examples:
        parse_pipeline(_read(example), "docs/pipeline-file.md")


def _read(text):
    from batchpaged.config.yaml_text import read_yaml

    return read_yaml(text, "docs/pipeline-file.md").data


@pytest.mark.parametrize("path", sorted((ROOT / "pipelines").glob("*.yaml")), ids=lambda path: path.name)
def test_the_pipelines_we_ship_are_valid(path):
    load_pipeline(path)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("sampling.temperature", "a number >= 0"),
        ("sampling.top_k", "an integer >= 1 or null"),
        ("engine.prefix_cache", "true or false"),
        ("sampling.logprobs", "an integer >= 0 and <= 20 or null"),
        ("cluster.workers", "auto or an integer >= 1"),
        ("output", "a mapping with keys path"),
        ("evaluate", "a mapping with keys references, metrics, contexts, gold_contexts, metrics_folder, judge"),
        ("prompt.system", "a string or null"),
    ],
)
def test_what_is_allowed_in_words(key, text):
    assert allowed(node_at(tuple(key.split(".")))) == text
