"""Whatever is given: a Pipeline or a ConfigError, never anything else."""

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batchpaged.config import Pipeline, load_pipeline, parse_pipeline
from batchpaged.config.schema import all_keys
from batchpaged.errors import ConfigError

NAMES = sorted({name for key in all_keys() for name in key.split(".")})
keys = st.sampled_from(NAMES) | st.text(max_size=5) | st.integers() | st.none()
leaves = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    | st.sampled_from(["auto", "2GiB", "f1 > 0.5", "cuda", "a.parquet"])
)  # fmt: skip
values = st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4))
pipelines = st.fixed_dictionaries(
    {},
    optional={name: values for name in ("name", "input", "prompt", "model", "engine", "sampling", "gates", "output")},
)
quick = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


def is_settled(make) -> bool:
    """Raises whatever is no ConfigError."""
    try:
        return isinstance(make(), Pipeline)
    except ConfigError as error:
        return bool(str(error))


@quick
@given(pipelines | st.dictionaries(keys, values, max_size=5), st.lists(st.text(max_size=12), max_size=2))
def test_any_mapping_and_overrides(mapping, overrides):
    assert is_settled(lambda: parse_pipeline(mapping, "fuzz", overrides))


@quick
@given(st.sampled_from(list(all_keys())), st.text(max_size=12) | leaves.map(str))
def test_any_override_of_any_key(key, value):
    smallest = {"input": {"path": "a"}, "prompt": {"user": "u"}, "model": {"id": "m"}, "output": {"path": "x"}}
    assert is_settled(lambda: parse_pipeline(smallest, overrides=[f"{key}={value}"]))


@quick
@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode) | pipelines.map(yaml.dump).map(str.encode))
def test_any_file(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "fuzz.yaml"
    path.write_bytes(content)
    assert is_settled(lambda: load_pipeline(path))
