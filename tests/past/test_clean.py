"""What `clean` deletes and what it must never touch."""

import os
from datetime import datetime

import pytest
from past.pastruns import make_run, make_unfinished, row

from batchpaged import api
from batchpaged.errors import RunDirectoryError
from batchpaged.past.clean import Rules, carry_out, delete_all, describe_age, plan_cleaning
from batchpaged.run.directory import RunDirectory

DAY = 86400.0
NOW = datetime.fromisoformat("2026-03-20T03:15:00+00:00").timestamp()
FAILED = {"gates": ("failed_rows <= 0",)}


def decide(folder, **rules):
    return plan_cleaning(folder, Rules(**rules), NOW)


def going(folder, **rules):
    return [decision.path.name for decision in decide(folder, **rules) if decision.goes]


def reason(folder, name, **rules):
    return {decision.path.name: decision.reason for decision in decide(folder, **rules)}[name]


def clean(folder, **rules):
    return delete_all(decide(folder, **rules), Rules(**rules))


@pytest.fixture
def runs(tmp_path):
    """Six nights; the last one failed."""
    folder = tmp_path / "runs"
    for day in range(1, 6):
        make_run(folder / f"day-{day}", day, rows=[row("a", "yes")])
    make_run(folder / "day-6", 6, **FAILED)
    return folder


def test_old_runs_go(runs):
    assert going(runs, min_age=17 * DAY) == ["day-1", "day-2", "day-3"]
    assert clean(runs, min_age=17 * DAY) == []
    assert sorted(os.listdir(runs)) == ["day-4", "day-5", "day-6"]


def test_the_last_ones_stay_by_number(runs):
    assert going(runs, keep=2) == ["day-1", "day-2", "day-3", "day-4"]
    assert reason(runs, "day-6", keep=2) == "among the last 2 of its name"


def test_with_both_rules_a_run_has_to_be_beyond_both(runs):
    assert going(runs, keep=2, min_age=17.5 * DAY) == ["day-1", "day-2"]
    assert going(runs, keep=5, min_age=DAY) == ["day-1"]


def test_the_last_good_run_of_each_name_stays_whatever_its_age(runs):
    make_run(runs / "other-1", 1, name="other", run_id="other-1")
    make_run(runs / "other-2", 2, name="other", run_id="other-2", **FAILED)
    assert going(runs, min_age=DAY) == ["day-1", "other-2", "day-2", "day-3", "day-4", "day-6"]
    assert reason(runs, "other-1", min_age=DAY) == reason(runs, "day-5", min_age=DAY) == "the last good run of its name"


def test_a_run_at_work_stays(runs):
    with RunDirectory(runs / "day-1").lock():
        decision = decide(runs, min_age=DAY)[0]
        assert (decision.reason, decision.goes) == ("at work", ())


def test_a_run_that_is_taken_up_in_between_stays(runs):
    decisions = decide(runs, min_age=17.5 * DAY)
    with RunDirectory(runs / "day-1").lock():
        [error] = delete_all(decisions, Rules(min_age=17.5 * DAY))
        assert "day-1: not deleted" in error and "is in use by process" in error
    assert sorted(os.listdir(runs)) == ["day-1", "day-3", "day-4", "day-5", "day-6"]


@pytest.mark.parametrize("stranger", ["notes.txt", ".git", "output2"])
def test_a_directory_with_anything_else_in_it_stays(runs, stranger):
    (runs / "day-1" / stranger).mkdir()
    assert reason(runs, "day-1", min_age=DAY) == f"holds what no run writes: {stranger}"
    assert "day-1" not in going(runs, min_age=DAY)


def test_what_is_no_run_directory_is_never_touched(runs):
    (runs / "data").mkdir()
    (runs / "data" / "run.json").write_text("{}")
    (runs / "data" / "lock").touch()
    (runs / "half").mkdir()
    (runs / "half" / "run.json").write_text((runs / "day-1" / "run.json").read_text())
    (runs / "history.html").touch()
    clean(runs, min_age=DAY)
    assert sorted(os.listdir(runs)) == ["data", "day-5", "half", "history.html"]


def test_links_are_not_followed(runs, tmp_path):
    outside = make_run(tmp_path / "outside", 1)
    (runs / "link").symlink_to(outside)
    (runs / "day-1" / "documents").symlink_to(outside)
    (runs / "day-1" / "output" / "more").symlink_to(outside)
    (runs / "day-1" / "sittings").symlink_to(tmp_path / "nowhere")
    before = sorted(str(path) for path in outside.rglob("*"))
    assert clean(runs, min_age=DAY) == []
    assert sorted(os.listdir(runs)) == ["day-5", "link"]
    assert sorted(str(path) for path in outside.rglob("*")) == before


def test_files_of_a_killed_process_go_with_the_run(runs):
    (runs / "day-1" / ".plan.0123.tmp").mkdir()
    (runs / "day-1" / ".report.json.89ab.tmp").touch()
    assert "day-1" in going(runs, min_age=DAY)


def test_results_can_be_kept(runs):
    rules = {"min_age": 17.5 * DAY, "only_work": True}
    assert going(runs, **rules) == ["day-1", "day-2"]
    assert clean(runs, **rules) == []
    assert sorted(os.listdir(runs / "day-1")) == ["lock", "output", "report.json", "run.json"]
    assert reason(runs, "day-1", **rules) == "nothing more to delete"
    assert api.compare(runs / "day-1", runs / "day-3").result["rows"]["both"] == 1


def test_an_unfinished_run_is_as_old_as_its_last_progress(runs):
    make_unfinished(runs / "unfinished", 1)
    moment = NOW - 3 * DAY
    for path in [*(runs / "unfinished").rglob("*")]:
        os.utime(path, (moment, moment))
    assert "unfinished" not in going(runs, min_age=4 * DAY)
    assert "unfinished" in going(runs, min_age=2 * DAY)
    assert reason(runs, "unfinished", min_age=2 * DAY, only_work=True) == "not finished"


def test_a_deletion_that_was_interrupted_is_ended_by_the_next(runs, monkeypatch):
    [first, *_] = decide(runs, min_age=DAY)
    monkeypatch.setattr("batchpaged.past.clean.shutil.rmtree", lambda path: (_ for _ in ()).throw(OSError("stopped")))
    with pytest.raises(OSError):
        carry_out(first, Rules(min_age=DAY))
    monkeypatch.undo()
    assert not (runs / "day-1").exists() and ".batchpaged-deleted-day-1" in os.listdir(runs)
    assert decide(runs, keep=100)[0].reason == "left of an interrupted deletion"
    assert clean(runs, keep=100) == []
    assert sorted(os.listdir(runs)) == [f"day-{day}" for day in range(2, 7)]


def test_nothing_is_deleted_unless_asked(runs):
    cleaning = api.clean(runs, min_age=1.0)
    assert len([d for d in cleaning.decisions if d.goes]) == 5 and not cleaning.is_done
    assert len(os.listdir(runs)) == 6
    assert all(d.num_bytes > 1000 for d in cleaning.decisions if d.goes)
    assert api.clean(runs, min_age=1.0, delete=True).errors == []
    assert os.listdir(runs) == ["day-5"]


def test_a_folder_that_holds_no_runs_is_left_alone(runs, tmp_path):
    with pytest.raises(RunDirectoryError, match="is a run directory itself"):
        api.clean(runs / "day-1", keep=1)
    with pytest.raises(RunDirectoryError, match="give a folder that holds run directories"):
        api.clean(tmp_path / "none", keep=1)
    assert api.clean(tmp_path, keep=1).decisions == []


def test_ages_in_words():
    assert [describe_age(age) for age in (3 * DAY, 1.5 * DAY, 7200, 5400)] == ["3 days", "36 hours", "2 hours", "90 minutes"]
