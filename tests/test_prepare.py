"""What is judged before any work, where it takes the whole pipeline."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchpaged.config import parse_pipeline
from batchpaged.errors import ConfigError
from batchpaged.prepare import lacking_figures, open_input

ONE = {"input": {"path": "a"}, "model": {"id": "m"}, "output": {"path": "o"}}
FREE, BOUND = {"max_tokens": 3}, {"max_tokens": 3, "structured": {"choices": ["yes", "no"]}}


def stage(name, sampling):
    return {"name": name, "prompt": {"user": "x"}, "sampling": sampling}


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({"prompt": {"user": "x"}}, {"structured.cut"}),
        ({"prompt": {"user": "x"}, "sampling": BOUND}, set()),
        ({"stages": [stage("answer", FREE), stage("judge", BOUND)]}, {"stages.answer.structured.cut"}),
        (
            {"stages": [stage("answer", FREE), stage("judge", FREE)]},
            {"structured.cut", "stages.answer.structured.cut", "stages.judge.structured.cut"},
        ),
    ],
)
def test_figures_of_constrained_completions_need_some(sections, expected):
    lacking = lacking_figures(parse_pipeline({**ONE, **sections}))
    assert {figure for figure, key in lacking.items() if key == "sampling.structured" and figure.endswith("cut")} == expected


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        ({}, {"memory_tiers.blocks_lost": "engine.host_cache", "memory_tiers.disk.read": "engine.host_cache"}),
        ({"host_cache": 9}, {"memory_tiers.disk.read": "engine.disk_cache"}),
        ({"host_cache": 9, "disk_cache": 9}, {}),
    ],
)
def test_figures_of_memory_tiers_need_the_tier(engine, expected):
    sections = {"stages": [stage("answer", FREE), stage("judge", FREE)], "engine": engine}
    lacking = lacking_figures(parse_pipeline({**ONE, **sections}))
    for prefix in ("", "stages.judge."):
        for figure in ("memory_tiers.blocks_lost", "memory_tiers.disk.read"):
            assert lacking.get(prefix + figure) == expected.get(figure)


def test_only_a_run_with_stages_has_earlier_ones():
    one, two = {"prompt": {"user": "x"}}, {"stages": [stage("answer", FREE), stage("judge", FREE)]}
    assert lacking_figures(parse_pipeline({**ONE, **one}))["earlier_stages.lost_tokens"] == "stages"
    assert "earlier_stages.lost_tokens" not in lacking_figures(parse_pipeline({**ONE, **two}))


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
