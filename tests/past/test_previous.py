"""Which run gates with `previous` compare with."""

import json
import os
import shutil
from datetime import datetime

import pytest
from past.pastruns import make_run, make_unfinished

from batchpaged.config import parse_pipeline
from batchpaged.errors import ConfigError, RunDirectoryError
from batchpaged.past.previous import check_previous, previous_report
from batchpaged.past.runs import find_runs
from batchpaged.run.directory import RunDirectory

FAILED = {"gates": ("failed_rows <= 0",)}


def pipeline(**keys):
    needed = {"input": {"path": "x"}, "prompt": {"text_column": "t"}, "model": {"id": "m"}, "output": {"path": "runs/x"}}
    return parse_pipeline({**needed, "gates": ["f1 >= previous"], **keys})


@pytest.fixture
def runs(tmp_path):
    """The run of March 9, whose output is there and whose report is not."""
    make_run(tmp_path / "today", 9)
    finished = datetime.fromisoformat("2026-03-09T03:15:00+00:00").timestamp()
    os.utime(tmp_path / "today" / "output" / "_SUCCESS", (finished, finished))
    return tmp_path


def chosen(runs, **keys):
    report = previous_report(pipeline(**keys), RunDirectory(runs / "today"), runs / "today")
    return report and report["run"]["id"]


def test_it_is_the_last_good_run_of_the_same_name_and_limit(runs):
    make_run(runs / "a", 3)
    make_run(runs / "b", 4)
    make_run(runs / "failed", 5, **FAILED)
    make_run(runs / "other", 6, name="other")
    make_run(runs / "try", 7, limit=10)
    make_run(runs / "later", 10)
    make_unfinished(runs / "unfinished", 8)
    (runs / "link").symlink_to(runs / "a")
    assert chosen(runs) == "rag_eval-04"


def test_it_stays_the_one_it_was(runs):
    make_run(runs / "a", 3)
    assert chosen(runs) == "rag_eval-03"
    shutil.rmtree(runs / "a")
    assert chosen(runs) == "rag_eval-03"
    assert "workers" not in json.loads((runs / "today" / "previous.json").read_text())


def test_there_may_be_none(runs):
    assert chosen(runs) is None
    make_run(runs / "a", 3)
    assert chosen(runs, gates=["f1 >= 0.5"]) is None and chosen(runs, previous="none") is None
    assert not (runs / "today" / "previous.json").exists()


def test_it_may_be_named_as_directory_or_report(runs):
    place = make_run(runs / "a", 3, **FAILED)
    for named in (place, place / "report.json"):
        check_previous(pipeline(previous=str(named)))
        assert chosen(runs, previous=str(named)) == "rag_eval-03"


@pytest.mark.parametrize("content", [None, "", "[]", "{}", '{"run": 5}', '{"run": {"id": "x"}, "gates": []}'])
def test_one_that_is_named_has_to_have_a_report(tmp_path, content):
    if content is not None:
        (tmp_path / "report.json").write_text(content)
    with pytest.raises(ConfigError, match="^previous: .*report"):
        check_previous(pipeline(previous=str(tmp_path)))


def test_what_is_no_run_is_passed_over(tmp_path):
    make_run(tmp_path / "b", 2)
    make_unfinished(tmp_path / "a", 1)
    for name, content in {"c": "nonsense", "d": '{"identity": {}, "run_id": 5}', "e": '{"identity": []}'}.items():
        make_run(tmp_path / name, 3)
        (tmp_path / name / "run.json").write_text(content)
    make_run(tmp_path / ".hidden", 4)
    (tmp_path / "file").touch()
    assert [(run.path.name, run.is_good) for run in find_runs(tmp_path)] == [("a", False), ("b", True)]
    assert find_runs(tmp_path, "other") == []


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(RunDirectoryError, match="give a folder that holds run directories"):
        find_runs(tmp_path / "none")
