"""The report of a run of several stages, from the reports of the stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from batchpaged.report.earlier_stages import num_spared
from batchpaged.report.gates import COUNTED, check
from batchpaged.report.memory_tiers import of_all_stages
from batchpaged.report.metrics import implied_gates, limit_of, ratio, reuse

Report = dict[str, Any]


def combine(
    info: Mapping[str, Any],
    stages: Mapping[str, Report],
    gates: Sequence[str],
    previous: Report | None = None,
    num_rows_left_out: int = 0,
) -> Report:
    """Tokens, times, workers, misses and how completions ended are sums over the stages; rows are those of the last one, which
    every row reaches.

    `info`: run.json. `stages`: name -> report, in their order.
    """
    reports = list(stages.values())
    last, tokens = reports[-1], _sums(reports, "tokens")
    time, every = _sums(reports, "time"), lambda key: [report[key] for report in reports]
    report = {
        **last,
        "run": {**last["run"], **{key: info[key] for key in ("name", "fingerprint", "started_at")}, "id": info["run_id"]},
        "rows": {**last["rows"], "deduplicated": sum(rows["deduplicated"] for rows in every("rows"))},
        "tokens": tokens,
        **reuse(tokens, sum(map(num_spared, reports))),
        "gpu_cache_usage_perc": _usage(reports),
        "num_preemption": sum(every("num_preemption")),
        "avg_sequence_length": ratio(
            tokens["prompt"] + tokens["completion"], sum(rows["succeeded"] for rows in every("rows"))
        ),
        "throughput": _throughput(last, tokens, time["infer"]),
        "time": time,
        "evaluation": _evaluation(stages),
        "gates": [],
        "workers": [{**worker, "stage": name} for name, report in stages.items() for worker in report["workers"]],
        "misses": _sums(reports, "misses"),
        "earlier_stages": _sums(reports, "earlier_stages"),
        "failures": {f"{name}: {why}": n for name, report in stages.items() for why, n in report["failures"].items()},
        "finish_reasons": _sums(reports, "finish_reasons"),
        "structured": _structured(reports),
        "references": None,
        "evaluation_details": _merged(stages, lambda report: report["evaluation_details"]) or None,
        "sequence_groups": _groups(every("sequence_groups")),
        "memory_tiers": of_all_stages(every("memory_tiers")),
        "limit": limit_of(last["rows"]["total"], num_rows_left_out),
        "previous": None if previous is None else {key: previous["run"][key] for key in ("id", "finished_at")},
        "stages": dict(stages),
    }
    return {**report, "gates": [check(gate, report, previous) for gate in (*gates, *implied_gates(report))]}


def _structured(reports: Sequence[Report]) -> dict[str, int] | None:
    """Of the stages that have it."""
    having = [report for report in reports if report["structured"] is not None]
    return _sums(having, "structured") if having else None


def _sums(reports: Sequence[Report], section: str) -> dict[str, Any]:
    """A figure that no stage has is null."""
    found = {}
    for key in dict.fromkeys(key for report in reports for key in report[section]):
        known = [report[section][key] for report in reports if report[section].get(key) is not None]
        found[key] = sum(known) if known else None
    return found


def _usage(reports: Sequence[Report]) -> dict[str, float | None]:
    """The mean is weighted by the time of inference."""
    pairs = [(r["gpu_cache_usage_perc"]["mean"], r["time"]["infer"] or 0.0) for r in reports]
    known = [(mean, seconds) for mean, seconds in pairs if mean is not None]
    peaks = [r["gpu_cache_usage_perc"]["peak"] for r in reports if r["gpu_cache_usage_perc"]["peak"] is not None]
    mean = ratio(sum(mean * seconds for mean, seconds in known), sum(seconds for _, seconds in known))
    return {"mean": mean, "peak": max(peaks, default=None)}


def _groups(of_stages: Sequence[Mapping[str, Any] | None]) -> dict[str, Any] | None:
    """Of several stages it is not known what they would have held together without sharing."""
    groups = [found for found in of_stages if found is not None]
    if len(groups) < 2:
        return dict(groups[0]) if groups else None
    sums = {key: sum(group[key] for group in groups) for key in ("num_groups", "blocks_shared", "blocks_copied")}
    return {**sums, "most_blocks_saved": max(group["most_blocks_saved"] for group in groups), "memory_saved": None}


def _throughput(last: Report, tokens: Mapping[str, int], infer: float | None) -> dict[str, float | None]:
    return {
        "rows_per_s": ratio(last["rows"]["succeeded"], infer),
        **{f"{kind}_tokens_per_s": ratio(tokens[kind], infer) for kind in ("prompt", "prefilled", "completion")},
    }


def _evaluation(stages: Mapping[str, Report]) -> dict[str, float | None] | None:
    """The metrics of all stages; as many rows are evaluated as in the stage that evaluates most."""
    evaluated = [report["evaluation"] for report in stages.values() if report["evaluation"] is not None]
    if not evaluated:
        return None
    metrics = _merged(stages, lambda report: {k: v for k, v in (report["evaluation"] or {}).items() if k != COUNTED})
    return {**metrics, COUNTED: max(evaluation[COUNTED] for evaluation in evaluated)}


def _merged(stages: Mapping[str, Report], of: Callable[[Report], Mapping[str, Any] | None]) -> dict[str, Any]:
    """By name; what several stages have goes by stage and name."""
    found = [(stage, name, value) for stage, report in stages.items() for name, value in (of(report) or {}).items()]
    names = [name for _, name, _ in found]
    return {name if names.count(name) == 1 else f"{stage}.{name}": value for stage, name, value in found}
