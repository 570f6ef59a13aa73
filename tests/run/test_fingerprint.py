import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchpaged.config import parse_pipeline
from batchpaged.run.fingerprint import changes, fingerprint, run_identity

FILES = [
    {"path": "/data/a.parquet", "size": 10, "version": "1", "num_rows": 3},
    {"path": "/data/b.parquet", "size": 20, "version": "1", "num_rows": 4},
]


def identity(model_identity="m", files=FILES, **sections):
    mapping = {
        "input": {"path": "/data"},
        "prompt": {"user": "{{ q }}"},
        "model": {"id": "m"},
        "output": {"path": "runs/x"},
    }
    return run_identity(parse_pipeline({**mapping, **sections}), model_identity, files)


@pytest.mark.parametrize(
    "sections",
    [
        {"engine": {"block_size": 32, "kv_cache": "1GiB", "prefix_cache": False}},
        {"gates": ["failed_rows <= 0"]},
        {"evaluate": {"references": "gold", "metrics": ["f1"]}},
        {"cluster": {"workers": 3}},
        {"output": {"path": "runs/y"}},
        {"name": "another"},
        {"previous": "none"},
    ],
)
def test_what_does_not_decide_completions_may_change(sections):
    assert fingerprint(identity(**sections)) == fingerprint(identity())
    assert changes(identity(), identity(**sections)) == []


@pytest.mark.parametrize(
    ("sections", "lines"),
    [
        ({"prompt": {"user": "{{ q }}!"}}, ["prompt.user changed"]),
        ({"prompt": {"user": "{{ q }}", "system": "S"}}, ["prompt.system changed"]),
        ({"sampling": {"temperature": 0.5, "seed": 3}}, ["sampling.seed: 0 -> 3", "sampling.temperature: 0.0 -> 0.5"]),
        ({"sampling": {"stop": ["x"]}}, ["sampling.stop: [] -> ['x']"]),
        ({"model": {"id": "m", "dtype": "float16"}}, ["model.dtype: 'auto' -> 'float16'"]),
        ({"input": {"path": "/data", "limit": 5}}, ["input.limit: None -> 5"]),
        ({"engine": {"kv_dtype": "fp8", "block_size": 32}}, ["engine.kv_dtype: None -> 'fp8'"]),
        ({"model_identity": "other"}, ["the model's files are not the same"]),
        ({"files": FILES[:1]}, ["input file removed: /data/b.parquet"]),
        ({"files": [*FILES, {"path": "/data/c"}]}, ["input file added: /data/c"]),
        ({"files": [FILES[0], {**FILES[1], "version": "2"}]}, ["input file changed: /data/b.parquet"]),
    ],
)
def test_what_decides_completions_is_named_when_it_changes(sections, lines):
    changed = identity(**sections)
    assert changes(identity(), changed) == lines
    assert fingerprint(changed) != fingerprint(identity())


def test_prompts_are_not_in_the_message():
    [line] = changes(identity(prompt={"user": "secret one"}), identity(prompt={"user": "secret two"}))
    assert "secret" not in line


def test_a_changed_order_of_files_is_another_run():
    assert fingerprint(identity(files=FILES[::-1])) != fingerprint(identity())


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=3), _json, max_size=4))
def test_the_order_of_keys_does_not_matter(mapping):
    assert fingerprint(dict(reversed(mapping.items()))) == fingerprint(mapping)
    assert len(fingerprint(mapping)) == 32


@given(_json, _json)
def test_different_values_have_different_fingerprints(a, b):
    same = json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)
    assert (fingerprint({"x": a}) == fingerprint({"x": b})) == same


@pytest.mark.parametrize("many", [False, True])
def test_no_key_or_signature_of_an_input_is_kept_and_another_one_makes_no_other_run(many):
    def of(secret):
        path = f"s3://KEY:{secret}@bucket/x.parquet?token={secret}"
        return identity(input={"path": [path, "/data"] if many else path})

    first, second = of("S3CRET"), of("0THER")
    assert "S3CRET" not in json.dumps(first) and fingerprint(first) == fingerprint(second)
    assert changes(first, second) == []
