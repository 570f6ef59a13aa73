"""Runs over time: records, CSV, table and page."""

import csv
import io
import json

import pytest
from past.pastruns import make_run, make_unfinished
from report.test_html import HOSTILE, Page, squeezed
from rich.console import Console

from batchpaged import api
from batchpaged.cli.text import history_lines
from batchpaged.errors import RunDirectoryError
from batchpaged.past.history import read_history, to_csv
from batchpaged.report.history_page import history_html

SCORES = [0.61, 0.62, None, 0.55]


@pytest.fixture
def runs(tmp_path):
    folder = tmp_path / "runs"
    for day, score in enumerate(SCORES, 1):
        make_run(folder / f"2026-03-0{day}", day, evaluation={"f1": score}, gates=("f1 >= 0.6",))
    make_unfinished(folder / "2026-03-05", 5)
    return folder


def test_records_are_in_order_of_time(runs):
    records = read_history(runs)
    assert [record["run"] for record in records] == [f"2026-03-0{day}" for day in range(1, 6)]
    assert [record["state"] for record in records] == ["good", "good", "failed", "failed", "unfinished"]
    assert [record["evaluation"].get("f1") for record in records] == [*SCORES, None]
    assert records[3]["failed_gates"] == ["f1 >= 0.6"]
    assert (records[0]["rows"], records[0]["failed_rows"], records[0]["prefix_cache_hit_rate"]) == (4, 1, 0.6)
    assert (records[4]["rows"], records[4]["finished_at"]) == (None, None)


def test_they_may_be_fewer(runs):
    make_run(runs / "other", 7, name="other")
    assert [record["run"] for record in read_history(runs, last=2)] == ["2026-03-05", "other"]
    assert [record["run"] for record in read_history(runs, "other")] == ["other"]
    with pytest.raises(RunDirectoryError, match="no run directories of a run called 'none'"):
        read_history(runs, "none")


def test_csv_reads_back(runs):
    lines = list(csv.DictReader(io.StringIO(to_csv(read_history(runs)))))
    assert [line["f1"] for line in lines] == ["0.61", "0.62", "", "0.55", ""]
    assert lines[3]["failed_gates"] == "f1 >= 0.6" and "evaluation" not in lines[0]


def test_the_table(runs):
    text = "\n".join(history_lines(read_history(runs), None, 200))
    assert "2026-03-04 03:15 UTC 2026-03-04 4 1 0.5500 60.0% 0.60 8.00 s FAILED 1 of 1" in " ".join(text.split())
    assert "2026-03-04 failed f1 >= 0.6" in text.splitlines()
    assert "2026-03-05" in text and "unfinished" in text and "Name" not in text
    make_run(runs / "other", 7, name="other")
    assert "Name" in "\n".join(history_lines(read_history(runs), None, 200))


def test_many_metrics_have_tables_of_their_own_where_one_is_too_wide(tmp_path):
    names = ["exact_match", "f1", "rouge_l", "contains", "numeric_match", "recall_at_5", "precision_at_5", "length_ratio"]
    for day in (1, 2):
        gates = ("exact_match >= 0.7", "rouge_l >= 0.9", "failed_rows <= 0")
        make_run(tmp_path / f"2026-03-0{day}", day, evaluation={name: 0.5 for name in names}, gates=gates)
    lines = history_lines(read_history(tmp_path), None, 100)
    assert max(map(len, lines)) <= 100 and len(lines) == 3 + 2 * 4 + 1 + 2  # no line is folded
    assert lines[0].split()[-1] == "Gates" and "exact_match" not in lines[0]
    assert lines[4].split() == ["Run", *names[:-1]] and lines[8].split() == ["Run", names[-1]]
    assert lines[-1] == "2026-03-02 failed exact_match >= 0.7, rouge_l >= 0.9, failed_rows <= 0"


def test_json(runs):
    assert json.loads("\n".join(history_lines(read_history(runs), "json", None)))["runs"] == read_history(runs)


def test_the_page(runs):
    (runs / "2026-03-04" / "report.html").touch()
    api.history(runs, html=runs / "history.html")
    html = (runs / "history.html").read_text()
    page = Page(html)
    text = squeezed(page)
    for part in (
        "rag_eval Last run unfinished 5 runs, 2 with a failed gate, 1 unfinished; finished between 2026-03-01 03:15 UTC and",
        "f1 Mean over rows with references; marks are runs with a failed gate",
        "Share of prompt tokens; dashed: the ceiling",
        "2026-03-04 03:15 UTC 2026-03-04 4 1 0.5500 60.0% 0.60 8.00 s failed f1 >= 0.6",
        "– 2026-03-05 – – – – – – unfinished",
    ):
        assert part in text, part
    assert [attrs["href"] for tag, attrs in page.tags if tag == "a"] == ["2026-03-04/report.html"]
    assert sum(attrs.get("class") == "mark" for _, attrs in page.tags) == 2 * 5
    assert "<script" not in html and "http" not in html.replace("http-equiv", "")
    [line] = [attrs["d"] for tag, attrs in page.tags if attrs.get("class") == "line prefill"]
    assert line.count("M") == 2 and line.count("L") == 1  # broken where the score is missing


def test_one_run_has_a_page(tmp_path):
    make_run(tmp_path / "a", 1, evaluation=None)
    assert "1 run; finished 2026-03-01 03:15 UTC." in squeezed(Page(history_html(read_history(tmp_path))))


def test_unfinished_runs_alone_have_a_page(tmp_path):
    make_unfinished(tmp_path / "a", 1)
    page = Page(history_html(read_history(tmp_path)))
    assert "1 run, 1 unfinished." in squeezed(page) and page.count("figure") == 0


def test_text_from_outside_is_escaped(tmp_path):
    make_run(tmp_path / "a", 1, name=HOSTILE, run_id=HOSTILE, evaluation={HOSTILE: 0.5}, gates=("f1 > 1",))
    record = {**read_history(tmp_path)[0], "run": HOSTILE, "failed_gates": [HOSTILE]}
    page = Page(history_html([record], {HOSTILE: HOSTILE}))
    assert page.count("script") == 0 and page.count("style") == 1
    assert page.text.count("alert('x')") > 5
    console = Console(width=100, file=io.StringIO())
    console.print("\n".join(history_lines([record], None, 100)), markup=False)


def test_a_page_that_cannot_be_written_is_refused(runs, tmp_path):
    with pytest.raises(RunDirectoryError, match="cannot be written"):
        api.history(runs, html=tmp_path / "none" / "page.html")
