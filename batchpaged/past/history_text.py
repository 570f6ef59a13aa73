"""The history of runs as tables on the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from batchpaged.past.history import metric_names
from batchpaged.report import formatting as fmt

_STATES = {"good": ("passed", "green"), "failed": ("FAILED", "bold red"), "unfinished": ("unfinished", "yellow")}
SCORE_WIDTH = 6  # of 0.1234
_Row = list[Text | str]


class HistoryView:
    """The oldest run first, as in a log: the last line is the news. Where one table is too wide, metrics have their own."""

    def __init__(self, records: Sequence[dict[str, Any]]) -> None:
        self.records, self.metrics = records, metric_names(records)
        self.has_names = len({record["name"] for record in records}) > 1

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        whole = self._table(self.metrics)
        if console.measure(whole, options=options.update(max_width=10_000)).maximum <= options.max_width:
            yield whole
        else:
            yield self._table(())
            yield from self._metrics(options.max_width)
        yield from self._failed_gates()

    def _table(self, metrics: Sequence[str]) -> Table:
        table = _table("Finished", "Run", *(["Name"] if self.has_names else []))
        for column in ("Rows", "Failed", *metrics, "Hit rate", "Rows/s", "Time"):
            table.add_column(column, justify="right")
        table.add_column("Gates")
        for record in self.records:
            table.add_row(*_cells(record, metrics, self.has_names))
        return table

    def _metrics(self, width: int) -> Iterator[RenderableType]:
        """Tables of as many metrics as fit side by side, each with the runs."""
        room = width - max(len(record["run"]) for record in self.records)
        for names in _groups(self.metrics, room):
            table = _table("Run")
            for name in names:
                table.add_column(name, justify="right")
            for record in self.records:
                table.add_row(Text(record["run"]), *_scores(record, names))
            yield from (Text(), table)

    def _failed_gates(self) -> Iterator[RenderableType]:
        failed = [record for record in self.records if record["failed_gates"]]
        if failed:
            yield Text()
        for record in failed:
            yield Text(f"{record['run']} failed ", "dim") + Text(", ".join(record["failed_gates"]))


def _groups(names: Sequence[str], room: int) -> list[list[str]]:
    groups: list[list[str]] = []
    left = 0
    for name in names:
        needed = max(len(name), SCORE_WIDTH) + 2
        if needed > left or not groups:
            groups.append([])
            left = room
        groups[-1].append(name)
        left -= needed
    return groups


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _cells(record: dict[str, Any], metrics: Sequence[str], has_names: bool) -> _Row:
    return [
        fmt.ABSENT if record["finished_at"] is None else fmt.moment(record["finished_at"]),
        Text(record["run"]),
        *([Text(record["name"])] if has_names else []),
        fmt.count(record["rows"]),
        Text(fmt.count(record["failed_rows"]), "red" if record["failed_rows"] else ""),
        *_scores(record, metrics),
        fmt.percent(record["prefix_cache_hit_rate"]),
        fmt.rate(record["rows_per_s"]),
        fmt.seconds(record["total_seconds"]),
        _gates(record),
    ]


def _scores(record: dict[str, Any], metrics: Sequence[str]) -> _Row:
    scores = [record["evaluation"].get(name) for name in metrics]
    return [fmt.ABSENT if score is None else f"{score:.4f}" for score in scores]


def _gates(record: dict[str, Any]) -> Text:
    """Which ones failed stands below the table."""
    words, style = _STATES[record["state"]]
    if record["state"] == "good" and not record["num_gates"]:
        return Text("none", "dim")
    number = f" {len(record['failed_gates'])} of {record['num_gates']}" if record["failed_gates"] else ""
    return Text(words + number, style)
