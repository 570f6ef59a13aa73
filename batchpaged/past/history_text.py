"""The history of runs as a table on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from batchpaged.past.history import metric_names
from batchpaged.report import formatting as fmt

_STATES = {"good": ("passed", "green"), "failed": ("FAILED", "bold red"), "unfinished": ("unfinished", "yellow")}


def history_table(records: Sequence[dict[str, Any]]) -> Table:
    """The oldest run first, as in a log: the last line is the news."""
    metrics = metric_names(records)
    has_names = len({record["name"] for record in records}) > 1
    table = Table(box=None, pad_edge=False, padding=(0, 2), header_style="dim")
    for column in ("Finished", "Run"):
        table.add_column(column, overflow="fold")
    if has_names:
        table.add_column("Name", overflow="fold")
    for column in ("Rows", "Failed", *metrics, "Hit rate", "Rows/s", "Time"):
        table.add_column(column, justify="right")
    table.add_column("Gates", overflow="fold")
    for record in records:
        table.add_row(*_cells(record, metrics, has_names))
    return table


def _cells(record: dict[str, Any], metrics: Sequence[str], has_names: bool) -> list[Text | str]:
    scores = [record["evaluation"].get(name) for name in metrics]
    return [
        fmt.ABSENT if record["finished_at"] is None else fmt.moment(record["finished_at"]),
        Text(record["run"]),
        *([Text(record["name"])] if has_names else []),
        fmt.count(record["rows"]),
        Text(fmt.count(record["failed_rows"]), "red" if record["failed_rows"] else ""),
        *(fmt.ABSENT if score is None else f"{score:.4f}" for score in scores),
        fmt.percent(record["prefix_cache_hit_rate"]),
        fmt.rate(record["rows_per_s"]),
        fmt.seconds(record["total_seconds"]),
        _gates(record),
    ]


def _gates(record: dict[str, Any]) -> Text:
    words, style = _STATES[record["state"]]
    if record["state"] == "good" and not record["num_gates"]:
        return Text("none", "dim")
    text = Text(words, style)
    return text.append(f" {', '.join(record['failed_gates'])}", "") if record["failed_gates"] else text
