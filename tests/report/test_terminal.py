import io
from pathlib import Path
from typing import Any

import pytest
from report.synthetic import make_facts, make_rows, make_timeline
from rich.console import Console

from batchpaged.report.facts import PlanFacts
from batchpaged.report.metrics import build_report
from batchpaged.report.terminal import MOST_REASONS, render_summary


def printed(run_dir: Path, width: int = 120, encoding: str = "utf-8", **changes: Any) -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    Console(file=file, width=width).print(render_summary(build_report(make_facts(**changes)), run_dir))
    file.flush()
    return "\n".join(line.rstrip() for line in raw.getvalue().decode(encoding).splitlines())


def test_the_summary(tmp_path: Path) -> None:
    (tmp_path / "report.json").touch()
    (tmp_path / "output").mkdir()
    assert (
        printed(tmp_path, width=160)
        == f"""
rag_eval  ✗ 1 of 2 gates failed  20260301-021500-7f3a

Rows           3 of 4 succeeded · 1 failed · 1 truncated
Prompt tokens  300 · 120 computed · 180 from the cache · 7 recomputed
               computed again: 12 evicted · 8 cut by an interruption · 7 preempted
Prefix cache   █████████████████▒▒░░░░░░░░░  60.0% of prompt tokens, ceiling 66.7% · reuse efficiency 90.0%
Throughput     0.60 rows/s · 24.0 prefilled tokens/s · 3.00 completion tokens/s
Time           8.00 s  (load 1.00 s, read 0.50 s, tokenize 0.25 s, plan 0.25 s, infer 5.00 s, assemble 0.50 s, other 0.50 s)
Evaluation     exact_match 0.5000 [0.2500, 0.7500] · f1 0.6250 [0.5000, 0.8750] (ValueError in 1 row)  (over 4 rows)
Gates          ✓ prefix_cache_hit_rate >= 0.5  0.6
               ✗ failed_rows <= 0  1
Failures       1 (25.0%)  prompt has 2,134 tokens; 2,016 fit
Files          {tmp_path}/output
               {tmp_path}/report.json"""
    )


def test_a_console_without_unicode_gets_plain_marks(tmp_path: Path) -> None:
    text = printed(tmp_path, encoding="ascii", evaluation={"f1": None})
    assert "f1 -" in text
    assert "#################++........." in text
    assert "FAILED failed_rows <= 0" in text


def test_names_are_text_not_markup(tmp_path: Path) -> None:
    assert "[bold]x[/]" in printed(tmp_path, name="[bold]x[/]")


@pytest.mark.parametrize(("gates", "verdict"), [((), "✓ done"), (("rows.total >= 1",), "✓ the gate passed")])
def test_verdicts(tmp_path: Path, gates: tuple[str, ...], verdict: str) -> None:
    assert verdict in printed(tmp_path, gates=gates)


def test_many_reasons_are_cut_short(tmp_path: Path) -> None:
    rows = make_rows([(f"r{i}", "failed", "x" * (i + 1), None, None, None, None) for i in range(MOST_REASONS + 2)])
    assert "2  for 2 more reasons: see report.html" in printed(tmp_path, rows=rows)


def test_a_run_with_nothing_to_show(tmp_path: Path) -> None:
    nothing = {"rows": make_rows([]), "plan": PlanFacts(0, 0, 0, 0, 0, 0), "timeline": make_timeline([]), "times": {}}
    text = printed(tmp_path, evaluation={"f1": None}, gates=(), engines=(), **nothing)
    assert "0 of 0 succeeded" in text and "–" in text


def test_metrics_over_different_rows_say_how_many(tmp_path: Path) -> None:
    details = {"f1": {"low": 0.5, "high": 0.875, "num_rows": 3}, "mrr": {"low": 1.0, "high": 1.0, "num_rows": 4}}
    text = printed(tmp_path, width=160, evaluation={"f1": 0.625, "mrr": 1.0, "num_evaluated": 4}, evaluation_details=details)
    assert "f1 0.6250 [0.5000, 0.8750] over 3 rows · mrr 1.0000 [1.0000, 1.0000] over 4 rows" in text
    assert "(over" not in text


def test_many_metrics_stand_below_each_other(tmp_path: Path) -> None:
    scores = {"exact_match": 0.5, "f1": 0.625, "contains": 1.0, "num_evaluated": 4}
    lines = printed(tmp_path, width=100, evaluation=scores).splitlines()
    first = next(index for index, line in enumerate(lines) if line.startswith("Evaluation"))
    assert [" ".join(line.split()) for line in lines[first : first + 3]] == [
        "Evaluation exact_match 0.5000 [0.2500, 0.7500]",
        "f1 0.6250 [0.5000, 0.8750] (ValueError in 1 row)",
        "contains 1.0000 (over 4 rows)",
    ]


def test_constrained_completions_are_counted(tmp_path: Path) -> None:
    assert "Structured" not in printed(tmp_path)
    assert "Structured     2 complete · 1 cut at max_tokens · 0 forced tokens" in printed(tmp_path, is_structured=True)
