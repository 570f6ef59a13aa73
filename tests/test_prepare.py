"""What is judged before any work, where it takes the whole pipeline."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchpaged.config import parse_pipeline
from batchpaged.errors import ConfigError
from batchpaged.prepare import open_input, unconstrained

ONE = {"input": {"path": "a"}, "model": {"id": "m"}, "output": {"path": "o"}}
FREE, BOUND = {"max_tokens": 3}, {"max_tokens": 3, "structured": {"choices": ["yes", "no"]}}


def stage(name, sampling):
    return {"name": name, "prompt": {"user": "x"}, "sampling": sampling}


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({"prompt": {"user": "x"}}, [""]),
        ({"prompt": {"user": "x"}, "sampling": BOUND}, []),
        ({"stages": [stage("answer", FREE), stage("judge", BOUND)]}, ["answer"]),
        ({"stages": [stage("answer", BOUND), stage("judge", FREE)]}, ["judge", ""]),
    ],
)
def test_stages_without_constrained_completions_are_known(sections, expected):
    assert unconstrained(parse_pipeline({**ONE, **sections})) == expected


@pytest.mark.parametrize(("name", "what"), [("missing", "does not exist"), ("file", "is a file")])
def test_a_folder_for_the_disk_tier_that_is_none_is_refused_before_anything_is_read(tmp_path, name, what):
    (tmp_path / "file").write_text("")
    pq.write_table(pa.table({"question": ["Why?"]}), tmp_path / "rows.parquet")
    engine = {"host_cache": 9, "disk_cache": 9, "disk_cache_path": str(tmp_path / name)}
    sections = {"prompt": {"user": "{{ question }}"}, "engine": engine, "input": {"path": str(tmp_path / "rows.parquet")}}
    with pytest.raises(ConfigError, match=f"engine.disk_cache_path: .*{name} {what}; it must be a folder"):
        open_input(parse_pipeline({**ONE, **sections}))
    far = {"cluster": {"scheduler": "tcp://far:8786"}}
    open_input(parse_pipeline({**ONE, **sections, **far}))  # there it may exist
