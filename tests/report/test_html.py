import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from report.synthetic import make_facts, make_rows, make_timeline

from batchpaged.report.facts import ROWS_SCHEMA, EarlierStages, EngineStats, PlanFacts, RunFacts, TierStats
from batchpaged.report.html import to_html, write_html
from batchpaged.report.metrics import build_report

VOID = {"meta", "path", "rect", "br", "link", "img"}
HOSTILE = "</style><script>alert('x')</script>\"&"


class Page(HTMLParser):
    """Checks nesting while parsing; keeps text, tags and attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self.text += " " if tag in ("td", "th", "p", "b", "h3") else ""

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.text += data

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


def page_of(facts: RunFacts) -> Page:
    return Page(to_html(build_report(facts), facts))


def squeezed(page: Page) -> str:
    return " ".join(page.text.split())


def test_memory_tiers_have_a_section_where_there_are_any() -> None:
    (engine,) = make_facts().engines
    tiers = TierStats(10, 5, 8, 3, 30, 20, 6, 4, 2, 1, 5, 1e-3, 2e-4, 3e-4, 4e-4)
    text = squeezed(page_of(make_facts(engines=(replace(engine, tiers=tiers, num_preemptions=7),))))
    assert "host memory 10 8 30 disk 5 3 6" in text
    assert "20 blocks loaded again instead of computed (320 tokens); 2 dropped for want of room. 5 of 7 preemptions swapped" in text
    assert "The disk lost blocks" in text and "16.0 ms to compute, 0.20 ms to save and 0.30 ms to load, 0.40 ms to read" in text
    assert "Memory tiers" not in squeezed(page_of(make_facts()))


def test_a_stage_that_was_resumed_says_what_its_cache_lacked() -> None:
    text = squeezed(page_of(make_facts(earlier_stages=EarlierStages(60, 1234))))
    assert "The stage could not use what earlier stages computed before an interruption: up to 1,234 tokens." in text
    assert "From the cache, computed by an earlier stage 60 20.0%" in text
    assert "possible within this stage 66.7%" in text
    assert "180" not in text.partition("Unique, had to be computed")[0].partition("Where 300 prompt tokens came from")[2]


def test_the_page_says_what_matters() -> None:
    text = squeezed(page_of(make_facts()))
    for part in (
        "rag_eval 1 of 2 gates failed",
        "3 of 4 rows completed in 8.00 s.",
        "60.0% of 300 prompt tokens came from the prefix cache: 90.0% of what could be reused.",
        "Prefix cache hit rate 60.0% of a possible 66.7% reuse efficiency 90.0%",
        "From the cache 180 60.0% Reusable, yet computed 20 6.7%",
        "Unique, had to be computed 100 33.3%",
        "Tokens computed again, by cause Cause Tokens evicted 12 cut by an interruption 8 preempted 7",
        "Tokens computed 120 of 300 prompt tokens",
        "prefix_cache_hit_rate >= 0.5 0.6 passed failed_rows <= 0 1 failed",
        "exact match 0.5000 [0.2500, 0.7500] f1 0.6250 [0.5000, 0.8750] ValueError in 1 row, which count as 0",
        "prompt has 2,134 tokens; 2,016 fit 1 c",
        "infer 5.00 s 62.5%",
        "other 0.50 s",
        "cpu 64 × 16",
    ):
        assert part in text, part


def test_it_needs_nothing_but_itself() -> None:
    html = to_html(build_report(make_facts()), make_facts())
    assert not re.search(r"https?:|url\(|@import|<script|<link|<img", html)
    assert "default-src 'none'" in html
    assert html.lstrip().lower().startswith("<!doctype html>")


def test_it_can_be_read_without_seeing_it() -> None:
    page = page_of(make_facts())
    assert page.tags[0] == ("html", {"lang": "en"})
    pictures = [attrs for tag, attrs in page.tags if tag == "svg"]
    assert all(attrs.get("aria-label") or attrs.get("aria-hidden") == "true" for attrs in pictures)
    assert page.count("caption") == page.count("table") == 6
    assert page.count("figcaption") == page.count("figure") == 7
    assert page.count("h1") == 1


def test_text_from_outside_is_escaped() -> None:
    rows = make_rows([(HOSTILE, "failed", HOSTILE, None, 1, None, None), ("b", "ok", None, HOSTILE, 2, 1, 1)])
    engine = EngineStats(HOSTILE, HOSTILE, 1, 16, 1, 1, 1, 1, 1, 1, 1.0)
    facts = make_facts(
        run_id=HOSTILE, name=HOSTILE, fingerprint=HOSTILE, model=HOSTILE, device=HOSTILE, versions={HOSTILE: HOSTILE},
        started_at=HOSTILE, finished_at=HOSTILE, rows=rows, engines=(engine,), evaluation={HOSTILE: 0.5}, gates=(),
    )  # fmt: skip
    page = page_of(facts)
    assert page.count("script") == 0 and page.count("style") == 1
    assert page.text.count("alert('x')") > 10


def empty(**changes: Any) -> RunFacts:
    nothing = {
        "rows": make_rows([]),
        "plan": PlanFacts(0, 0, 0, 0, 0, 0),
        "engines": (),
        "timeline": make_timeline([]),
        "times": {},
        "evaluation": None,
        "gates": (),
        "versions": {},
    }
    return make_facts(**{**nothing, **changes})


ALL_FAILED = make_rows([("a", "failed", "is null", None, None, None, None)])
DETAILS = {"f1": {"low": 1.0, "high": 1.0, "num_rows": 1}, "mrr": {"low": 0.0, "high": 0.0, "num_rows": 2}}
ONE_ROW = make_rows([("a", "ok", None, "stop", 1, 0, 0)])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "All 0 rows completed in –."),
        ({"rows": ALL_FAILED}, "0 of 1 row completed"),
        ({"rows": ONE_ROW, "plan": PlanFacts(1, 1, 1, 0, 1, 1)}, "0.0% of 1 prompt tokens came from the prefix cache."),
        ({"evaluation": {"f1": None, "num_evaluated": 0}}, "Mean over 0 rows"),
        ({"evaluation": {"f1": 1.0, "num_evaluated": 2}, "references": "answers"}, "Mean over 2 rows with references"),
        ({"evaluation": {"f1": 1.0, "mrr": 0.0, "num_evaluated": 2}, "evaluation_details": DETAILS}, "Mean over rows; a failed row counts as 0"),
        ({"gates": ("rows.total >= 0",)}, "The gate passed"),
        ({"gates": ("reuse_efficiency >= 0",)}, "1 of 1 gate failed"),
    ],
)
def test_a_run_with_nothing_to_show_has_a_page(changes: dict[str, Any], said: str) -> None:
    page = page_of(empty(**changes))
    assert said in squeezed(page)
    assert "nan" not in page.text.lower()


def big_facts(num_rows: int, num_samples: int) -> RunFacts:
    random = np.random.default_rng(0)
    prompt = random.integers(100, 2000, num_rows, dtype=np.int32)
    cached = (prompt * random.random(num_rows)).astype(np.int32)
    failed = random.random(num_rows) < 0.3
    errors = np.char.add(np.char.add("reason ", (prompt % 97).astype(str)), np.where(prompt % 2, " tokens", " blocks"))
    columns = {
        "row_id": pa.array(np.char.add("row-" * 25, np.arange(num_rows).astype(str))),
        "status": pa.array(np.where(failed, "failed", "ok")),
        "error": pa.array(errors, mask=~failed),
        "finish_reason": pa.array(np.where(prompt % 3, "stop", "length"), mask=failed),
        "prompt_tokens": pa.array(prompt),
        "cached_tokens": pa.array(cached, mask=failed),
        "completion_tokens": pa.array(cached % 129, mask=failed),
    }
    samples = [
        (float(i), f"w{i % 8}", i * 100, i * 300, i * 40, (i % 50) / 50, 9, 3, i // 900) for i in range(num_samples)
    ]
    engines = tuple(
        EngineStats(f"w{i}", "cuda:0", 9999, 16, 9, 9, 9, 9, 9, 9, 9.0) for i in range(300)
    )
    return make_facts(rows=pa.table(columns, schema=ROWS_SCHEMA), timeline=make_timeline(samples), engines=engines)


def test_a_large_run_has_a_small_page() -> None:
    facts = big_facts(50_000, 10_000)
    html = to_html(build_report(facts), facts)
    assert len(html.encode()) < 1_000_000
    page = Page(html)
    assert "the first 100 of 300; report.json has them all" in squeezed(page)
    paths = [attrs["d"] or "" for tag, attrs in page.tags if tag == "path"]
    assert all(path.count("L") <= 300 for path in paths)
    assert page.count("rect") <= 3 * 40


def test_the_file_is_the_page(tmp_path: Path) -> None:
    facts = make_facts()
    path = write_html(build_report(facts), facts, tmp_path / "report.html")
    assert path.read_text(encoding="utf-8") == to_html(build_report(facts), facts)
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.html"]
