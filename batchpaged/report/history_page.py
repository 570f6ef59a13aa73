"""The page of `batchpaged history`: what became of the same pipeline, run after run. In the style of the report's page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from batchpaged.report import formatting as fmt
from batchpaged.report.charts import Chart
from batchpaged.report.html import page_environment
from batchpaged.report.page import Verdict
from batchpaged.report.run_charts import Axis, RunSeries, run_chart

MOST_RUNS = 400  # a year of nights; the table in CSV or JSON has them all

Record = dict[str, Any]  # of batchpaged.past.history


@dataclass(frozen=True)
class Section:
    """All runs of one name."""

    name: str
    verdict: Verdict  # of the last run
    summary: str
    charts: tuple[Chart, ...]
    metrics: list[str]
    records: list[Record]  # the newest first


def history_html(records: Sequence[Record], links: dict[str, str] | None = None) -> str:
    """The page; names, ids and gates in it are escaped. `links`: address of a run's own report, by its `run`."""
    names = dict.fromkeys(record["name"] for record in records)
    sections = [_section(name, [record for record in records if record["name"] == name]) for name in names]
    return page_environment().get_template("history.html.jinja").render(sections=sections, links=links or {})


def _section(name: str, records: list[Record]) -> Section:
    records = records[-MOST_RUNS:]
    finished = [record for record in records if record["state"] != "unfinished"]
    metrics = list(dict.fromkeys(metric for record in records for metric in record["evaluation"]))
    return Section(
        name, _verdict(records[-1]), _summary(records, finished), _charts(finished, metrics), metrics, records[::-1]
    )


def _verdict(last: Record) -> Verdict:
    if last["state"] == "unfinished":
        return Verdict("neutral", "Last run unfinished")
    if last["state"] == "failed":
        return Verdict("failed", f"Last run: {fmt.plural(len(last['failed_gates']), 'gate')} failed")
    return Verdict("passed", "Last run: all gates passed") if last["num_gates"] else Verdict("neutral", "No gates")


def _summary(records: Sequence[Record], finished: Sequence[Record]) -> str:
    num_failed = sum(record["state"] == "failed" for record in records)
    parts = [fmt.plural(len(records), "run")]
    parts += [f"{num_failed} with a failed gate"] if num_failed else []
    parts += [f"{len(records) - len(finished)} unfinished"] if len(finished) < len(records) else []
    text = ", ".join(parts)
    if not finished:
        return f"{text}."
    first, last = (fmt.moment(finished[place]["finished_at"]) for place in (0, -1))
    return f"{text}; finished between {first} and {last}." if len(finished) > 1 else f"{text}; finished {last}."


def _charts(records: Sequence[Record], metrics: Sequence[str]) -> tuple[Chart, ...]:
    if not records:
        return ()
    labels = _labels(records)
    marks = [i for i, record in enumerate(records) if record["state"] == "failed"]
    note = "; marks are runs with a failed gate" if marks else ""

    def chart(title: str, words: str, series: list[RunSeries], show: Any, axis: Axis = "amount") -> Chart:
        return run_chart(title, words + note, labels, series, show, marks, axis)

    def values(key: str) -> list[float | None]:
        return [record[key] for record in records]

    scores = [
        chart(_spaced(name), "Mean over rows with references", [RunSeries("prefill", name, _scores(records, name))], _score, "score")
        for name in metrics
    ]
    rates = [
        RunSeries("cached", "hit rate", values("prefix_cache_hit_rate")),
        RunSeries("limit", "ceiling", values("prefix_cache_hit_rate_ceiling"), has_dots=False),
    ]
    return (
        *scores,
        chart("Prefix cache hit rate", "Share of prompt tokens; dashed: the ceiling", rates, fmt.percent, "percent"),
        chart("Rows per second", "Of inference", [RunSeries("decode", "rows/s", values("rows_per_s"))], fmt.rate),
        chart("Failed rows", "Rows", [RunSeries("bad", "failed", values("failed_rows"))], fmt.count, "count"),
        chart("Total time", "Seconds", [RunSeries("running", "time", values("total_seconds"))], fmt.seconds),
    )


def _scores(records: Sequence[Record], name: str) -> list[float | None]:
    return [record["evaluation"].get(name) for record in records]


def _score(value: float | None) -> str:
    return fmt.ABSENT if value is None else f"{value:.4f}"


def _spaced(name: str) -> str:
    return name.replace("_", " ")


def _labels(records: Sequence[Record]) -> list[str]:
    """Days; with the time of day where a day has several runs."""
    moments = [fmt.moment(record["finished_at"]).removesuffix(" UTC") for record in records]
    days = [moment[:10] for moment in moments]
    return days if len(set(days)) == len(days) else moments
