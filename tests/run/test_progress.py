import io

import pytest

from batchpaged.run import progress as module
from batchpaged.run.progress import (
    NullReporter,
    PlainReporter,
    Progress,
    RichReporter,
    describe,
    duration,
    make_reporter,
)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def plain(clock):
    stream = io.StringIO()
    return PlainReporter(stream, clock), stream


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Broken(io.StringIO):
    def write(self, text):
        raise BrokenPipeError


def lose_terminal(text):
    raise OSError(5, "Input/output error")


def infer(num_done, **kwargs):
    return Progress("infer", num_done, 219, **kwargs)


def test_a_line_names_rows_speeds_hit_rate_and_time_left():
    parts = describe(infer(120, prefill_tokens_per_s=1812.4, decode_tokens_per_s=143, hit_rate=0.871, seconds_left=83))
    assert parts == [
        "120/219 rows",
        "prefill 1,812 tokens/s",
        "decode 143 tokens/s",
        "hit rate 87.1%",
        "1m 23s left",
    ]


def test_a_line_holds_only_what_is_known():
    assert describe(Progress("read", 1200)) == ["1,200 rows"]
    assert describe(Progress("read", 2, 3, unit="files")) == ["2/3 files"]


def test_a_zero_is_known():
    assert "hit rate 0.0%" in describe(infer(1, hit_rate=0.0))


def test_what_is_over_has_no_time_left():
    assert describe(infer(219, seconds_left=0)) == ["219/219 rows"]
    assert describe(infer(219, seconds_left=0), is_over=True) == ["219 rows"]
    assert describe(infer(100, seconds_left=9), is_over=True) == ["100/219 rows"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0s"), (0.4, "0s"), (59.4, "59s"), (59.6, "1m 00s"), (185, "3m 05s"), (3599.7, "1h 00m"), (90061, "25h 01m")],
)
def test_durations_are_short(seconds, text):
    assert duration(seconds) == text


def test_plain_lines_are_seconds_apart(plain, clock):
    reporter, stream = plain
    for num_done in range(100):
        clock.now = num_done / 10
        reporter.update(infer(num_done))
    lines = stream.getvalue().splitlines()
    assert lines == ["[      0s] infer: 0/219 rows", "[      5s] infer: 50/219 rows"]


def test_plain_lines_grow_rarer_in_a_long_run(plain, clock):
    reporter, stream = plain
    for second in range(0, 8 * 3600):
        clock.now = float(second)
        reporter.update(Progress("infer", second, 10**6))
    assert 400 < len(stream.getvalue().splitlines()) < 700


def test_a_new_stage_has_its_line_at_once(plain):
    reporter, stream = plain
    for stage in ("load", "read", "plan", "infer"):
        reporter.update(Progress(stage, 0))
        reporter.update(Progress(stage, 1))
    assert [line.split()[2] for line in stream.getvalue().splitlines()] == ["load:", "read:", "plan:", "infer:"]


def test_the_end_of_a_stage_has_one_line(plain):
    reporter, stream = plain
    for num_done in (0, 218, 219, 219):
        reporter.update(infer(num_done))
    assert stream.getvalue().splitlines() == ["[      0s] infer: 0/219 rows", "[      0s] infer: 219/219 rows"]


def test_a_stage_done_at_once_has_one_line_even_after_one_that_was(plain):
    reporter, stream = plain
    reporter.update(Progress("read", 3, 3))
    reporter.update(Progress("plan", 3, 3))
    reporter.update(Progress("plan", 3, 3))
    assert len(stream.getvalue().splitlines()) == 2


def test_notes_are_written_and_a_closed_reporter_is_silent(plain):
    reporter, stream = plain
    reporter.note("waiting for workers [2 of 4]")
    reporter.close()
    reporter.close()
    reporter.note("too late")
    reporter.update(infer(1))
    assert stream.getvalue() == "[      0s] waiting for workers [2 of 4]\n"


def test_a_reader_that_went_away_does_not_stop_the_run():
    reporter = PlainReporter(Broken())
    reporter.update(infer(1))
    reporter.note("on")
    closed = io.StringIO()
    closed.close()
    PlainReporter(closed).note("on")


def test_the_terminal_shows_each_finished_stage_in_a_line(clock, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    stream = Terminal()
    reporter = RichReporter(stream, clock)
    reporter.update(Progress("read", 1, 3, unit="files"))
    reporter.update(Progress("read", 3, 3, unit="files"))
    clock.now = 2.0
    reporter.update(infer(7, hit_rate=0.5, seconds_left=60))
    reporter.note("a worker was lost; its unit [3] is computed again")
    clock.now = 63.0
    reporter.close()
    reporter.close()
    reporter.update(infer(9))
    text = stream.getvalue()
    assert "read      3 files · 2s" in text
    assert "its unit [3] is computed again" in text
    assert "infer     7/219 rows · hit rate 50.0% · 1m 01s" in text


def test_a_terminal_that_went_away_does_not_stop_the_run(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    reporter = RichReporter(stream)
    reporter.update(Progress("read", 1))
    monkeypatch.setattr(stream, "write", lose_terminal)
    reporter.update(infer(1))
    reporter.note("on")
    reporter.close()


def test_the_null_reporter_takes_everything():
    reporter = NullReporter()
    reporter.update(infer(1))
    reporter.note("x")
    reporter.close()


def test_the_stream_decides_the_reporter(monkeypatch):
    closed = io.StringIO()
    closed.close()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(module, "RichReporter", lambda stream: "rich")
    assert make_reporter(Terminal()) == "rich"
    assert isinstance(make_reporter(io.StringIO()), PlainReporter)
    assert isinstance(make_reporter(closed), PlainReporter)
    assert isinstance(make_reporter(None), NullReporter)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(make_reporter(Terminal()), PlainReporter)
