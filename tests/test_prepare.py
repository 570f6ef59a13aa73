"""What is judged before any work, where it takes the whole pipeline."""

import pytest

from batchpaged.config import parse_pipeline
from batchpaged.prepare import unconstrained

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
