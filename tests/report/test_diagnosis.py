"""Why prefixes miss, as `batchpaged plan` prints it."""

from batchpaged.planning.diagnosis.findings import Diagnosis, Finding
from batchpaged.report.diagnosis import diagnosis_lines


def finding(cause, **more):
    facts = {"what": "what is so", "way_out": "do something", "num_rows": 1234, "example_rows": ("r-1", "r-2")}
    return Finding(cause, **{**facts, "num_tokens": 25_000, "hit_rate": 0.75, **more})


def lines(*findings, num_rows=5000):
    return list(diagnosis_lines(Diagnosis(findings, num_rows, 5000, 100_000, 50_000)))


def test_nothing_found():
    assert lines() == []


def test_a_cause_in_two_lines():
    assert lines(finding("varying_field")) == [
        "",
        "Why prefixes miss:",
        "  varying field: 25,000 prompt tokens (25.0%), hit rate 75.0% without it, 50.0% with it; "
        "1,234 rows, compare rows r-1 and r-2",
        "    what is so. Way out: do something",
    ]


def test_a_cause_behind_another_and_a_sample():
    text = lines(finding("context_order", after=("varying_field",)), num_rows=2000)
    assert text[1] == "Why prefixes miss (estimated from 2,000 of 5,000 rows):"
    assert "25,000 prompt tokens (25.0%) more once varying field is mended, hit rate 75.0% then" in text[2]


def test_what_costs_nothing_here():
    short = finding("short_prefix", num_tokens=0, hit_rate=0.5, num_tokens_elsewhere=40_000, hit_rate_elsewhere=0.1)
    assert (
        "short prefix: nothing here, 40,000 prompt tokens (40.0%) in a cache of whole blocks, "
        "hit rate 50.0% here, 10.0% there;" in lines(short)[2]
    )


def test_without_a_prefix_cache_nothing_hits():
    off = finding("prefix_cache_off", example_rows=("r-1",))
    assert "hit rate 75.0% without it, 0.0% with it; 1,234 rows, such as row r-1" in lines(off)[2]
