"""The summary a run ends with on the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from batchpaged.report import formatting as fmt
from batchpaged.report.earlier_stages import lost_cache, num_spared
from batchpaged.report.metrics import computed_again, is_hopeless, memory_shortage, ratio, seconds_of_stages

BAR_WIDTH = 28
MOST_REASONS = 5
METRICS_ON_A_LINE = 2
_FILES = ("output", "report.html", "report.json", "metrics.prom")


def render_summary(report: dict[str, Any], run_dir: Path | str, location: str | None = None) -> RunSummary:
    """A rich renderable: `console.print(render_summary(report, run_dir))`. `location`: what is shown in place of `run_dir`."""
    return RunSummary(report, Path(run_dir), location or str(run_dir))


class RunSummary:
    """Chooses plain ASCII marks where the console has no others."""

    def __init__(self, report: dict[str, Any], run_dir: Path, location: str) -> None:
        self.report, self.run_dir, self.location = report, run_dir, location

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        marks = _Marks(options.ascii_only)
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim", no_wrap=True)
        table.add_column(overflow="fold")
        for label, value in _lines(self.report, self.run_dir, self.location, marks):
            value.plain = value.plain.replace(fmt.ABSENT, marks.absent)
            table.add_row(label, value)
        yield Text()
        yield _headline(self.report, marks)
        yield Text()
        yield table


class _Marks:
    def __init__(self, ascii_only: bool) -> None:
        self.passed, self.failed = ("ok", "FAILED") if ascii_only else ("✓", "✗")
        self.full, self.missed, self.rest = ("#", "+", ".") if ascii_only else ("█", "▒", "░")
        self.dot, self.absent = (" | ", "-") if ascii_only else (" · ", fmt.ABSENT)


def _headline(report: dict[str, Any], marks: _Marks) -> Text:
    failed = sum(not gate["passed"] for gate in report["gates"])
    name = Text(report["run"]["name"], style="bold")
    if is_hopeless(report):
        verdict = Text(f"  {marks.failed} no row succeeded", "bold red")
    elif failed:
        verdict = Text(f"  {marks.failed} {failed} of {fmt.plural(len(report['gates']), 'gate')} failed", "bold red")
    elif report["gates"]:
        verdict = Text(f"  {marks.passed} {_all_passed(len(report['gates']))}", "bold green")
    else:
        verdict = Text(f"  {marks.passed} done", "bold green")
    return name + verdict + Text(f"  {report['run']['id']}", "dim")


def _all_passed(num_gates: int) -> str:
    return "the gate passed" if num_gates == 1 else f"all {num_gates} gates passed"


def _lines(report: dict[str, Any], run_dir: Path, location: str, marks: _Marks) -> Iterator[tuple[str, Text]]:
    yield "Rows", _rows(report["rows"], marks)
    yield "Prompt tokens", _tokens(report, marks)
    if again := computed_again(report):
        yield "", Text(f"computed again: {marks.dot.join(f'{fmt.count(n)} {name}' for name, n in again)}", "yellow")
    yield "Prefix cache", _cache(report, marks)
    if shortage := memory_shortage(report):
        yield "Memory", Text(shortage, "yellow")
    yield "Throughput", _throughput(report["throughput"], marks)
    yield "Time", _time(report["time"], marks)
    if report.get("structured") is not None:  # reports of earlier versions have none
        yield "Structured", _structured(report["structured"], marks)
    for index, (name, stage) in enumerate(report.get("stages", {}).items()):
        yield "" if index else "Stages", _stage(name, stage, marks)
        if lost := lost_cache(stage):
            yield "", Text(f"{name} {lost}", "yellow")
    if report.get("memory_tiers") is not None:
        yield "Memory tiers", Text(fmt.memory_tiers(report["memory_tiers"], marks.dot))
    for index, line in enumerate(_evaluation(report, marks)):
        yield "" if index else "Evaluation", line
    for index, gate in enumerate(report["gates"]):
        yield "" if index else "Gates", _gate(gate, marks)
    yield from _failures(report)
    for index, name in enumerate(name for name in _FILES if (run_dir / name).exists()):
        yield "" if index else "Files", Text(f"{location.rstrip('/')}/{name}")


def _rows(rows: dict[str, int], marks: _Marks) -> Text:
    text = Text(f"{fmt.count(rows['succeeded'])} of {fmt.count(rows['total'])} succeeded")
    text.append(f"{marks.dot}{fmt.count(rows['failed'])} failed", "red" if rows["failed"] else "")
    for kind in ("truncated", "deduplicated"):
        text.append(f"{marks.dot}{fmt.count(rows[kind])} {kind}" if rows[kind] else "")
    return text


def _tokens(report: dict[str, Any], marks: _Marks) -> Text:
    tokens = report["tokens"]
    text = Text(f"{fmt.count(tokens['prompt'])}{marks.dot}{fmt.count(tokens['prefilled'])} computed")
    text.append(f"{marks.dot}{_cached(report, fmt.count(tokens['cached']))}")
    text.append(f"{marks.dot}{fmt.count(tokens['recomputed'])} recomputed" if tokens["recomputed"] else "")
    return text


def _cached(report: dict[str, Any], amount: str) -> str:
    """With what of it an earlier stage computed."""
    spared = num_spared(report)
    return f"{amount} from the cache" + (f" ({fmt.plural(spared, 'token')} of it computed by earlier stages)" if spared else "")


def _cache(report: dict[str, Any], marks: _Marks) -> Text:
    rate, ceiling = report["prefix_cache_hit_rate"], report["prefix_cache_hit_rate_ceiling"]
    text = _bar(rate or 0.0, ceiling or 0.0, marks)
    text.append(f"  {fmt.percent(rate)}", "bold")
    within = " within one stage" if num_spared(report) else ""
    text.append(f" of prompt tokens, ceiling{within} {fmt.percent(ceiling)}")
    return text.append(f"{marks.dot}reuse efficiency {fmt.percent(report['reuse_efficiency'])}")


def _bar(rate: float, ceiling: float, marks: _Marks) -> Text:
    """Cached, reusable but computed, and the rest that had to be computed."""
    cached = round(BAR_WIDTH * min(rate, 1.0))
    reusable = max(cached, round(BAR_WIDTH * min(ceiling, 1.0)))
    text = Text(marks.full * cached, "cyan")
    text.append(marks.missed * (reusable - cached), "yellow")
    return text.append(marks.rest * (BAR_WIDTH - reusable), "dim")


def _throughput(throughput: dict[str, float | None], marks: _Marks) -> Text:
    parts = [f"{fmt.rate(throughput['rows_per_s'])} rows/s"]
    for kind in ("prefilled", "completion"):
        parts.append(f"{fmt.rate(throughput[f'{kind}_tokens_per_s'])} {kind} tokens/s")
    return Text(marks.dot.join(parts))


def _time(time: dict[str, float | None], marks: _Marks) -> Text:
    text = Text(fmt.seconds(time["total"]))
    stages = [f"{stage} {fmt.seconds(value)}" for stage, value in seconds_of_stages(time).items() if value >= 0.005]
    return text.append(f"  ({', '.join(stages)})" if stages else "", "dim")


def _structured(structured: dict[str, int], marks: _Marks) -> Text:
    cut = f"{marks.dot}{fmt.count(structured['cut'])} cut at max_tokens"
    text = Text(f"{fmt.count(structured['complete'])} complete").append(cut, "yellow" if structured["cut"] else "")
    return text.append(f"{marks.dot}{fmt.plural(structured['forced_tokens'], 'forced token')}")


def _stage(name: str, stage: dict[str, Any], marks: _Marks) -> Text:
    rows, rate = stage["rows"], fmt.percent(stage["prefix_cache_hit_rate"])
    parts = [f"{fmt.count(rows['succeeded'])} of {fmt.count(rows['total'])} succeeded"]
    parts += [_cached(stage, rate), f"reuse efficiency {fmt.percent(stage['reuse_efficiency'])}", f"inference {fmt.seconds(stage['time']['infer'])}"]
    return Text(f"{name}  ", "bold") + Text(marks.dot.join(parts))


def _evaluation(report: dict[str, Any], marks: _Marks) -> list[Text]:
    """Few metrics on one line, more below each other."""
    evaluation, details = report["evaluation"] or {}, report.get("evaluation_details") or {}
    counts = fmt.rows_of_metrics(report)
    scores = {name: _score(value, details.get(name), counts.get(name)) for name, value in evaluation.items() if name != "num_evaluated"}
    width = max(map(len, scores), default=0)
    if len(scores) > METRICS_ON_A_LINE:
        lines = [Text(f"{name:<{width}}  {score}") for name, score in scores.items()]
    else:
        lines = [Text(marks.dot.join(f"{name} {score}" for name, score in scores.items()))] if evaluation else []
    if "num_evaluated" in evaluation and not counts:
        lines[-1].append(f"  (over {fmt.plural(int(evaluation['num_evaluated'] or 0), 'row')})", "dim")
    return lines


def _score(value: float | None, details: dict[str, Any] | None, num_rows: int | None) -> str:
    """With its interval, its number of rows if others have another, and in how many a user's metric failed or a judge gave no verdict."""
    if value is None:
        return fmt.ABSENT
    parts = [f"{value:.4f}", fmt.interval(details), "" if num_rows is None else f"over {fmt.plural(num_rows, 'row')}"]
    parts += [f"({kind} in {fmt.plural(count, 'row')})" for kind, count in (details or {}).get("errors", {}).items()]
    return " ".join(filter(None, parts))


def _gate(gate: dict[str, Any], marks: _Marks) -> Text:
    text = Text(f"{marks.passed} " if gate["passed"] else f"{marks.failed} ", "green" if gate["passed"] else "bold red")
    return text.append(gate["gate"], "").append(f"  {fmt.gate_result(gate)}", "dim")


def _failures(report: dict[str, Any]) -> Iterator[tuple[str, Text]]:
    reasons = list(report["failures"].items())
    for index, (reason, number) in enumerate(reasons[:MOST_REASONS]):
        share = fmt.percent(ratio(number, report["rows"]["total"]))
        yield "" if index else "Failures", Text(f"{fmt.count(number)} ({share})  {reason}")
    if len(reasons) > MOST_REASONS:
        rest = sum(number for _, number in reasons[MOST_REASONS:])
        yield "", Text(f"{fmt.count(rest)}  for {len(reasons) - MOST_REASONS} more reasons: see report.html", "dim")
