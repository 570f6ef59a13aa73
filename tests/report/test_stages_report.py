"""The report of several stages, from synthetic reports of each."""

import io
from pathlib import Path
from typing import Any

import pytest
from report.synthetic import make_facts, make_rows
from rich.console import Console

from batchpaged.report.facts import EarlierStages, PlanFacts
from batchpaged.report.html import write_stages_html
from batchpaged.report.metrics import build_report
from batchpaged.report.prometheus import to_prometheus
from batchpaged.report.stages import combine
from batchpaged.report.terminal import render_summary

INFO = {"name": "two", "fingerprint": "f", "started_at": "2026-03-01T02:15:00+00:00", "run_id": "two-1"}


def stage(num_cached: int, num_lost: int, **changes: Any) -> dict[str, Any]:
    """200 prompt tokens of which 150 are unique; what is cached beyond 50 is an earlier stage's."""
    rows = make_rows([("a", "ok", None, "stop", 100, 0, 5), ("b", "ok", None, "length", 100, 50 + num_cached, 8)])
    made = {"rows": rows, "plan": PlanFacts(2, 200, 150, 0, 100, 1), "gates": (), "evaluation": None, "evaluation_details": None}
    nothing_lost = dict.fromkeys(make_facts().lost_tokens, 0)
    facts = make_facts(**made, lost_tokens=nothing_lost, earlier_stages=EarlierStages(num_cached, num_lost), **changes)
    return build_report(facts)


def both(num_cached: int = 40, num_lost: int = 0, gates: tuple[str, ...] = ()) -> dict[str, Any]:
    return combine(INFO, {"answer": stage(0, 0), "judge": stage(num_cached, num_lost, is_structured=True)}, gates)


def printed(report: dict[str, Any], folder: Path) -> str:
    file = io.StringIO()
    Console(file=file, width=160).print(render_summary(report, folder))
    return file.getvalue()


def test_the_whole_counts_what_stages_found_of_each_other() -> None:
    report = both()
    assert report["earlier_stages"] == {"cached_tokens": 40, "lost_tokens": 0}
    assert (report["prefix_cache_hit_rate"], report["prefix_cache_hit_rate_ceiling"]) == (140 / 400, 100 / 400)
    assert report["reuse_efficiency"] == report["stages"]["judge"]["reuse_efficiency"] == 1.0


def test_how_completions_ended_is_told_of_all_stages() -> None:
    report = both()
    assert report["finish_reasons"] == {"stop": 2, "length": 2}
    assert report["structured"] == {"complete": 1, "cut": 1, "forced_tokens": 0}
    free = combine(INFO, {"a": stage(0, 0), "b": stage(0, 0)}, ())
    assert free["structured"] is None
    first = combine(INFO, {"a": stage(0, 0, is_structured=True), "b": stage(0, 0)}, ())
    assert first["structured"] == {"complete": 1, "cut": 1, "forced_tokens": 0}


@pytest.mark.parametrize(
    ("gate", "has_note"),
    [
        ("stages.judge.prefix_cache_hit_rate >= 0.4", True),
        ("prefix_cache_hit_rate >= previous + 0.4", False),  # without a previous run it passes
        ("prefix_cache_hit_rate >= 0.4", True),
        ("stages.judge.prefix_cache_hit_rate >= 0.2", False),
        ("stages.answer.prefix_cache_hit_rate >= 0.4", False),
        ("stages.judge.reuse_efficiency > 1", False),
    ],
)
def test_a_gate_that_failed_for_want_of_a_cache_says_so(gate: str, has_note: bool) -> None:
    (entry,) = both(num_cached=0, num_lost=1234, gates=(gate,))["gates"]
    note = "could not use what earlier stages computed before an interruption: up to 1,234 tokens"
    assert entry.get("note") == (note if has_note else None)
    assert "note" not in both(num_cached=0, gates=(gate,))["gates"][0]


def test_terminal_page_and_metrics_tell_what_stages_found_of_each_other(tmp_path: Path) -> None:
    report = both(num_lost=1234, gates=("stages.judge.prefix_cache_hit_rate >= 0.9",))
    text, page = printed(report, tmp_path), write_stages_html(report, tmp_path / "report.html").read_text()
    assert "140 from the cache (40 tokens of it computed by earlier stages)" in text
    assert "45.0% from the cache (40 tokens of it computed by earlier stages) · reuse efficiency 100.0%" in text
    assert "judge could not use what earlier stages computed before an interruption: up to 1,234 tokens" in text
    assert "0.45, could not use" in text and "0.45, could not use" in page
    assert "<td>40</td>" in page and "Stage judge could not use" in page
    assert 'kind="cached"} 40' in to_prometheus(report)
    calm = printed(combine(INFO, {"a": stage(0, 0), "b": stage(0, 0)}, ()), tmp_path)
    assert "earlier stages" not in calm and "resumed" not in calm
