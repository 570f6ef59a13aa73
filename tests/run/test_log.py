"""JSON lines: what they hold, and what never is in them."""

import io
import json

import pytest
import tiny_runs

from batchpaged.errors import UnfinishedError
from batchpaged.run.directory import RunDirectory
from batchpaged.run.log import Both, JsonReporter, logging_to
from batchpaged.run.progress import NullReporter, Progress
from batchpaged.run.unit_log import log_unit


def lines_of(text):
    return [json.loads(line) for line in text.splitlines()]


def test_every_line_says_when_and_of_which_run():
    stream = io.StringIO()
    reporter = JsonReporter(stream, clock=lambda: 1772331320.25)
    reporter.note("first")
    reporter.log("run_started", run="r-1", sitting="s", name="rag")
    reporter.log("row_failed", unit=3, row="é", error="is null")
    common = {"time": "2026-03-01T02:15:20.250+00:00"}
    assert lines_of(stream.getvalue()) == [
        {**common, "event": "note", "run": None, "sitting": None, "message": "first"},
        {**common, "event": "run_started", "run": "r-1", "sitting": "s", "name": "rag"},
        {**common, "event": "row_failed", "run": "r-1", "sitting": "s", "unit": 3, "row": "é", "error": "is null"},
    ]


def test_progress_comes_as_seldom_as_in_a_log_for_people():
    stream, now = io.StringIO(), [0.0]
    reporter = JsonReporter(stream, clock=lambda: now[0])
    for i in range(1001):
        now[0] = i / 100
        reporter.update(Progress("infer", i, 1000, hit_rate=0.5))
    lines = lines_of(stream.getvalue())
    assert [line["num_done"] for line in lines] == [0, 500, 1000]
    assert lines[1]["hit_rate"] == 0.5 and "seconds_left" not in lines[1]
    assert lines[1]["counted"] == "rows" and "unit" not in lines[1]


def test_after_the_end_nothing_is_written():
    stream = io.StringIO()
    reporter = JsonReporter(stream)
    reporter.close()
    reporter.note("late")
    assert stream.getvalue() == ""


def test_a_stream_that_is_gone_stops_nothing():
    stream = io.StringIO()
    reporter = JsonReporter(stream)
    stream.close()
    reporter.note("unheard")


def test_two_reporters_are_told_the_same():
    streams = io.StringIO(), io.StringIO()
    both = Both(*(JsonReporter(stream, clock=lambda: 0.0) for stream in streams))
    both.update(Progress("plan", 1, 2))
    both.note("note")
    both.log("event", unit=1)
    both.close()
    both.note("late")
    first, second = (stream.getvalue() for stream in streams)
    assert first == second and len(first.splitlines()) == 3


@pytest.mark.parametrize(
    ("error", "message"), [(UnfinishedError("disk full"), "disk full"), (ValueError("it says: text"), None)]
)
def test_how_a_run_ended_is_in_its_log_and_foreign_messages_are_not(tmp_path, error, message):
    path = tmp_path / "log.jsonl"
    path.write_text("{}\n")
    with pytest.raises(type(error)), logging_to(path, NullReporter()):
        raise error
    [_, line] = lines_of(path.read_text())
    assert (line["event"], line["error"], line["message"]) == ("run_stopped", type(error).__name__, message)


def test_a_unit_whose_file_is_not_to_be_seen_yet_is_logged_without_its_rows(tmp_path):
    stream = io.StringIO()
    facts = {"unit": 4, "num_rows": 3, "completions": {"num_rows": 2, "num_tokens": 9}}
    log_unit(JsonReporter(stream), RunDirectory(tmp_path), facts)
    [line] = lines_of(stream.getvalue())
    assert (line["event"], line["unit"], line["num_failed"], line["worker"]) == ("unit_done", 4, 1, None)


@pytest.fixture(scope="module")
def lines():
    run_dir = tiny_runs.finished_run().run_dir
    run_id = json.loads((run_dir / "run.json").read_text())["run_id"]
    found = lines_of((run_dir / "log.jsonl").read_text())
    assert {line["run"] for line in found} == {run_id}
    return found


def test_a_run_s_log_names_units_rows_and_gates(lines):
    events = [line["event"] for line in lines]
    first = events[: events.index("run_finished") + 1]  # later sittings found it finished
    assert first[0] == "run_started" and first.count("gate") == 2
    units = [line for line in lines if line["event"] == "unit_done"]
    assert sorted(line["unit"] for line in units) == list(range(len(units)))
    assert sum(line["num_rows"] for line in units) == tiny_runs.NUM_ROWS
    failed = [line for line in lines if line["event"] == "row_failed"]
    everything = tiny_runs.rows()
    assert {line["row"] for line in failed} == {everything[place]["id"] for place in tiny_runs.FAILED}
    assert all(line["error"] and isinstance(line["unit"], int) for line in failed)


def test_no_line_holds_text_of_a_prompt_or_completion(lines):
    text = json.dumps(lines)
    completions = [text for text in tiny_runs.output(tiny_runs.finished_run().run_dir)["completion"].to_pylist() if text]
    for piece in (tiny_runs.SYSTEM, "Many questions", "What is", *completions):
        assert len(piece) < 4 or piece not in text
