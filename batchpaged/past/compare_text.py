"""A comparison on the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from batchpaged.report import formatting as fmt

_KINDS = {
    "changed": "completion changed",
    "changed_same_prompt": "  with the same prompt",
    "prompt_changed": "prompt changed",
    "newly_failed": "newly failed",
    "no_longer_failed": "no longer failed",
    "only_a": "only in A",
    "only_b": "only in B",
}
_LISTED = ("changed", "newly_failed", "no_longer_failed", "only_a", "only_b")
_VERDICTS = {"better": ("better", "green"), "worse": ("WORSE", "bold red"), "unclear": ("no clear change", "dim")}
_VERDICTS |= {f"only_{side}": (f"not in {other.upper()}", "yellow") for side, other in ("ab", "ba")}
_FIGURES: dict[str, tuple[str, Callable[[float | None], str]]] = {
    "prefix_cache_hit_rate": ("hit rate", fmt.percent),
    "prefix_cache_hit_rate_ceiling": ("hit rate ceiling", fmt.percent),
    "reuse_efficiency": ("reuse efficiency", fmt.percent),
    "rows.failed": ("failed rows", fmt.count),
    "tokens.prompt": ("prompt tokens", fmt.count),
    "tokens.completion": ("completion tokens", fmt.count),
    "throughput.rows_per_s": ("rows/s", fmt.rate),
    "throughput.prompt_tokens_per_s": ("prompt tokens/s", fmt.rate),
    "throughput.completion_tokens_per_s": ("completion tokens/s", fmt.rate),
    "time.infer": ("inference", fmt.seconds),
    "time.total": ("total time", fmt.seconds),
    "gpu_cache_usage_perc.peak": ("block pool, peak", fmt.percent),
    "num_preemption": ("preemptions", fmt.count),
}
_LONGEST_TEXT = 200  # characters
_MOST_SETTINGS = 8


class ComparisonView:
    """`console.print(ComparisonView(result))`; result is compare_runs(...)."""

    def __init__(self, result: dict[str, Any]) -> None:
        self.result = result

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        result = self.result
        yield _runs(result)
        yield from _setting_lines(result["settings"])
        yield Text()
        if result["rows"] is None:
            yield Text("No rows: a report alone tells nothing about them. Give run directories to compare rows.", "dim")
        else:
            yield _rows(result["rows"])
            yield from _id_lines(result["ids"], result["rows"])
        if result["metrics"]:
            yield Text()
            yield _metrics(result["metrics"])
        if any(figure["a"] is not None or figure["b"] is not None for figure in result["figures"].values()):
            yield Text()
            yield _figures(result["figures"])
        if result["texts"] is not None:
            yield from _text_lines(result["texts"])


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2), header_style="dim")
    for index, name in enumerate(columns):
        table.add_column(name, justify="left" if index == 0 else "right", overflow="fold")
    return table


def _runs(result: dict[str, Any]) -> Table:
    table = Table.grid(padding=(0, 2))
    for side in ("a", "b"):
        run = result[side]
        finished = None if run["finished_at"] is None else fmt.moment(run["finished_at"])
        known = [part for part in (run["id"], run["model"], finished) if part]
        table.add_row(Text(side.upper(), "bold"), Text(run["path"]), Text(" · ".join(known), "dim"))
    return table


def _setting_lines(settings: list[str]) -> Iterator[Text]:
    """The first ones: two nights' inputs may differ by a thousand files."""
    yield from (Text(f"  {line}", "yellow") for line in settings[:_MOST_SETTINGS])
    if len(settings) > _MOST_SETTINGS:
        yield Text(f"  and {len(settings) - _MOST_SETTINGS} more differences; --json has them all", "yellow")


def _rows(rows: dict[str, Any]) -> Table:
    table = _table("Rows", "", "")
    table.add_row("in both", fmt.count(rows["both"]), Text(_matched_by(rows), "dim"))
    for kind, words in _KINDS.items():
        if rows[kind] is not None:
            share = fmt.percent(rows[kind] / rows["both"]) if rows["both"] and not kind.startswith("only") else ""
            is_news = rows[kind] and kind in _LISTED
            table.add_row(words, Text(fmt.count(rows[kind]), "bold yellow" if is_news else ""), share)
    return table


def _matched_by(rows: dict[str, Any]) -> str:
    return f"by {rows['matched_by']}" if rows["matched_by"] else "by position"


def _id_lines(ids: dict[str, list[str]], counts: dict[str, Any]) -> Iterator[Text]:
    for kind in _LISTED:
        if ids[kind]:
            rest = counts[kind] - len(ids[kind])
            more = f" and {rest:,} more" if rest > 0 else ""
            yield Text(f"{_KINDS[kind]}: ", "dim") + Text(", ".join(ids[kind]) + more)


def _metrics(metrics: dict[str, dict[str, Any]]) -> Table:
    table = _table("Metric", "A", "B", "B − A, row by row", "")
    for name, metric in metrics.items():
        words, style = _VERDICTS[metric["verdict"]]
        cells = [_interval(metric["a"]), _interval(metric["b"]), _interval(metric["change"], "+.4f")]
        table.add_row(name, *cells, Text(words, style))
    return table


def worse_lines(metrics: dict[str, dict[str, Any]]) -> list[str]:
    """Of the metrics that got worse: both figures, and the difference."""
    return [
        f"worse: {name} {metric['a']['mean']:.4f} -> {metric['b']['mean']:.4f}, row by row {_interval(metric['change'], '+.4f')}"
        for name, metric in metrics.items()
        if metric["verdict"] == "worse"
    ]


def _interval(estimate: dict[str, float | None] | None, form: str = ".4f") -> str:
    if estimate is None:
        return fmt.ABSENT
    mean = format(estimate["mean"], form)
    return mean if estimate["low"] is None else f"{mean} [{estimate['low']:{form}}, {estimate['high']:{form}}]"


def _figures(figures: dict[str, dict[str, float | None]]) -> Table:
    table = _table("Figure", "A", "B", "change")
    for name, figure in figures.items():
        words, show = _FIGURES[name]
        table.add_row(words, show(figure["a"]), show(figure["b"]), _change(figure, show is fmt.percent))
    return table


def _change(figure: dict[str, float | None], is_share: bool) -> str:
    """Shares change by points, other figures by so many percent."""
    before, change = figure["a"], figure["change"]
    if change is None:
        return fmt.ABSENT
    if is_share:
        return f"{change * 100:+.1f} points" if abs(change) >= 0.0005 else "="
    if change == 0:
        return "="
    return f"{change / before:+.1%}" if before else f"{change:+,.4g}"


def _text_lines(texts: dict[str, dict[str, str | None]]) -> Iterator[Text]:
    for row_id, pair in texts.items():
        yield Text(f"\n{row_id}", "bold")
        for side in ("a", "b"):
            yield Text(f"  {side.upper()}  ", "dim") + Text(_shortened(pair[side]))


def _shortened(text: str | None) -> str:
    if text is None:
        return fmt.ABSENT
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_TEXT else f"{line[: _LONGEST_TEXT - 1]}…"
