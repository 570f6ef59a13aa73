"""What report.html shows, as values ready to print: the template only places them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from batchpaged.evaluation.evaluator import NO_VERDICT
from batchpaged.report import formatting as fmt
from batchpaged.report.charts import Chart, Segment, Series, histogram, stacked_bar, time_chart
from batchpaged.report.distributions import Lengths, bin_lengths, count_cached_fractions, count_lengths
from batchpaged.report.earlier_stages import lost_cache, num_spared
from batchpaged.report.facts import RunFacts
from batchpaged.report.failures import group_failures
from batchpaged.report.json import to_json
from batchpaged.report.metrics import computed_again, is_hopeless, memory_shortage, seconds_of_stages
from batchpaged.report.timeline import Timeline, summarise_timeline

MOST_WORKERS = 100  # in the table and in the embedded report; report.json has them all
LONGEST_ID = 80  # characters


@dataclass(frozen=True)
class Verdict:
    state: str  # passed | failed | neutral
    text: str


@dataclass(frozen=True)
class Tile:
    """One big figure."""

    label: str
    value: str
    detail: str


def build_page(report: dict[str, Any], facts: RunFacts) -> dict[str, Any]:
    """Everything the template names."""
    return {
        "report": report,
        "verdict": _verdict(report),
        "summary": _summary(report),
        "reuse": _reuse_segments(report["tokens"], num_spared(report)),
        "has_spared": num_spared(report) > 0,
        "lost_cache": lost_cache(report),
        "computed_again": computed_again(report),
        "tiles": _tiles(report),
        "metrics": _metrics(report),
        "rows_of_metrics": fmt.rows_of_metrics(report),
        "evaluated": _evaluated(report),
        "failures": group_failures(facts.rows),
        "shorten": _shorten,
        "time_charts": _time_charts(facts),
        "row_charts": _row_charts(facts),
        "finish_reasons": _finish_reasons(report),
        "memory_shortage": memory_shortage(report),
        "stages": _stages(report["time"]),
        "workers": report["workers"][:MOST_WORKERS],
        "plan": facts.plan,
        "json": to_json({**report, "workers": report["workers"][:MOST_WORKERS]}),
    }


def _verdict(report: dict[str, Any]) -> Verdict:
    if is_hopeless(report):
        return Verdict("failed", "No row succeeded")
    failed, total = sum(not gate["passed"] for gate in report["gates"]), len(report["gates"])
    if failed:
        return Verdict("failed", f"{failed} of {fmt.plural(total, 'gate')} failed")
    if total:
        return Verdict("passed", "The gate passed" if total == 1 else f"All {total} gates passed")
    return Verdict("neutral", "Finished, no gates")


def _summary(report: dict[str, Any]) -> str:
    """The run in two sentences."""
    rows, tokens = report["rows"], report["tokens"]
    done = "All" if rows["failed"] == 0 else f"{fmt.count(rows['succeeded'])} of"
    first = f"{done} {fmt.plural(rows['total'], 'row')} completed in {fmt.seconds(report['time']['total'])}."
    if report["prefix_cache_hit_rate"] is None:
        return first
    share, prompt = fmt.percent(report["prefix_cache_hit_rate"]), fmt.compact(tokens["prompt"])
    second = f" {share} of {prompt} prompt tokens came from the prefix cache"
    second += f", {fmt.compact(num_spared(report))} of them from an earlier stage" if num_spared(report) else ""
    if report["reuse_efficiency"] is None:
        return f"{first}{second}."
    return f"{first}{second}: {fmt.percent(report['reuse_efficiency'])} of what could be reused."


def _reuse_segments(tokens: dict[str, int], spared: int) -> tuple[Segment, ...]:
    """All prompt tokens: cached, reusable but computed, and those no cache could have spared."""
    missed = max(0, tokens["prefilled"] + spared - tokens["unique"])
    parts = (
        ("cached", "From the cache", tokens["cached"] - spared),
        ("earlier", "From the cache, computed by an earlier stage", spared),
        ("missed", "Reusable, yet computed", missed),
        ("unique", "Unique, had to be computed", tokens["prefilled"] - missed),
    )
    return stacked_bar([(kind, name, number, fmt.count(number)) for kind, name, number in parts])


def _tiles(report: dict[str, Any]) -> tuple[Tile, ...]:
    tokens, throughput = report["tokens"], report["throughput"]
    rows = f"{fmt.plural(report['rows']['succeeded'], 'row')} in {fmt.seconds(report['time']['infer'])}"
    served = f"serving {fmt.rate(throughput['prompt_tokens_per_s'])} prompt tokens/s"
    again, tiers = tokens["recomputed"], report.get("memory_tiers")
    swapped = f", {fmt.count(tiers['preemptions']['swapped'])} swapped" if tiers else ""
    return (
        Tile("Rows per second", fmt.rate(throughput["rows_per_s"]), rows),
        Tile("Prefill, tokens/s", fmt.rate(throughput["prefilled_tokens_per_s"]), served),
        Tile(
            "Decode, tokens/s",
            fmt.rate(throughput["completion_tokens_per_s"]),
            f"{fmt.compact(tokens['completion'])} completion tokens",
        ),
        Tile("Tokens computed", fmt.compact(tokens["prefilled"]), f"of {fmt.compact(tokens['prompt'])} prompt tokens"),
        Tile("Tokens saved", fmt.compact(tokens["cached"]), "taken from the prefix cache"),
        Tile(
            "Preemptions",
            fmt.count(report["num_preemption"]),
            (f"{fmt.plural(again, 'token')} recomputed" if again else "nothing recomputed") + swapped,
        ),
    )


def _metrics(report: dict[str, Any]) -> list[tuple[str, float | None, str, str]]:
    """(name, mean, its interval, errors of a user's metric)"""
    details = report.get("evaluation_details") or {}
    return [
        (name, value, fmt.interval(details.get(name)), _errors(details.get(name, {}).get("errors", {})))
        for name, value in (report["evaluation"] or {}).items()
        if name != "num_evaluated"
    ]


def _evaluated(report: dict[str, Any]) -> str:
    """What the means are over, as far as it is one thing for all metrics."""
    number = (report["evaluation"] or {}).get("num_evaluated")
    has_one = number is not None and not fmt.rows_of_metrics(report)
    rows = fmt.plural(number, "row") if has_one else "rows"
    return f"Mean over {rows}{' with references' if report.get('references') else ''}; a failed row counts as 0"


def _errors(errors: dict[str, int]) -> str:
    """Rows for which a user's metric failed count as 0, those in which a judge gave no verdict do not count."""
    weight = {NO_VERDICT: "do not count"}
    return ", ".join(
        f"{kind} in {fmt.plural(count, 'row')}, which {weight.get(kind, 'count as 0')}" for kind, count in errors.items()
    )


def _shorten(row_id: str) -> str:
    return row_id if len(row_id) <= LONGEST_ID else f"{row_id[: LONGEST_ID - 1]}…"


def _time_charts(facts: RunFacts) -> tuple[Chart, ...]:
    timeline = summarise_timeline(facts.timeline)
    if timeline is None:
        return ()
    computed, generated = timeline.prefilled_per_s, timeline.completion_per_s
    return (
        _rate_chart("Prefilled tokens per second", "prefill", "Prompt tokens computed", timeline.edges, computed),
        _rate_chart("Completion tokens per second", "decode", "Tokens generated", timeline.edges, generated),
        _pool_chart(timeline),
        _batch_chart(timeline),
    )


def _rate_chart(title: str, kind: str, what: str, edges: np.ndarray, values: np.ndarray) -> Chart:
    return time_chart(title, f"{what}, all workers together", edges, [Series(kind, "tokens/s", values, fmt.rate)])


def _pool_chart(timeline: Timeline) -> Chart:
    edges, preempted = timeline.edges, timeline.num_preemptions
    note = "Share of blocks in use: mean, and highest sample"
    marks = [float(edges[i] + edges[i + 1]) / 2 for i in range(len(preempted)) if preempted[i] >= 0.5]
    series = [
        Series("peak", "peak", timeline.usage_peak, fmt.percent),
        Series("pool", "mean", timeline.usage_mean, fmt.percent),
        Series("preempted", "preemptions", preempted, fmt.count, is_drawn=False),
    ]
    note += "; marks are preemptions" if marks else ""
    return time_chart("Block pool", note, edges, series, lambda share: f"{share:.0%}", top=1.0, marks=marks)


def _batch_chart(timeline: Timeline) -> Chart:
    series = [
        Series("running", "running", timeline.num_running, fmt.rate),
        Series("waiting", "waiting", timeline.num_waiting, fmt.rate, is_drawn=False),
    ]
    return time_chart("Running sequences", "Sequences in the batch, all workers together", timeline.edges, series)


def _row_charts(facts: RunFacts) -> tuple[Chart, ...]:
    """Empty when no row ran."""
    prompts, completions = count_lengths(facts.rows, "prompt_tokens"), count_lengths(facts.rows, "completion_tokens")
    if not prompts.num_rows:
        return ()
    lengths = [("Prompt length", prompts), ("Completion length", completions)]
    return (*(_length_chart(title, values) for title, values in lengths if values.num_rows), _fraction_chart(facts))


def _length_chart(title: str, lengths: Lengths) -> Chart:
    bins = bin_lengths(lengths)
    median, high = (fmt.count(lengths.quantile(share)) for share in (0.5, 0.95))
    note = f"Tokens; median {median}, 95% within {high}, longest {fmt.count(lengths.longest)}"
    return histogram(title, note, bins.edges, bins.counts, _token_range, fmt.count)


def _token_range(low: float, high: float) -> str:
    return fmt.plural(int(low), "token") if high - low == 1 else f"{low:,.0f} to {high - 1:,.0f} tokens"


def _fraction_chart(facts: RunFacts) -> Chart:
    fractions = count_cached_fractions(facts.rows)
    without = fractions.num_without_hit
    rest = f"{fmt.plural(without, 'row')} computed it whole" if without else "every row reused some of it"
    note = f"Share of a row's prompt; {rest}"
    bins = fractions.bins
    return histogram("Cached part of each prompt", note, bins.edges, bins.counts, _cached_range, "{:.0%}".format)


def _cached_range(low: float, high: float) -> str:
    return f"{low:.0%} to {high:.0%} cached"


def _finish_reasons(report: dict[str, Any]) -> tuple[Segment, ...]:
    names = {"stop": "Stopped by the model or a stop string", "length": "Cut at the token limit"}
    parts = report["finish_reasons"].items()
    return stacked_bar([(f"finish-{key}", names.get(key, key), number, fmt.count(number)) for key, number in parts])


def _stages(time: dict[str, float | None]) -> tuple[Segment, ...]:
    parts = seconds_of_stages(time).items()
    return stacked_bar([(f"stage-{name}", name, amount, fmt.seconds(amount)) for name, amount in parts])
