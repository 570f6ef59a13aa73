"""report.json: every figure of a run, from its facts.

Token counts come from the rows, not from the engines: rows are committed, so they describe the whole run even when
workers were lost on the way, and prompt == cached + prefilled holds by construction.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from batchpaged.report.facts import MISS_CAUSES, STAGES, EarlierStages, EngineStats, RunFacts
from batchpaged.report.failures import count_failures
from batchpaged.report.gates import check
from batchpaged.report.memory_tiers import memory_tiers
from batchpaged.report.rows import RowTotals, sum_rows
from batchpaged.report.timeline import usage_mean_and_peak


def build_report(facts: RunFacts) -> dict[str, Any]:
    """The report as plain JSON types; a ratio with nothing to divide by is None, and no value is NaN or infinite."""
    totals = sum_rows(facts.rows)
    tokens = _tokens(facts, totals)
    report = {
        "run": _run(facts),
        "rows": _rows(facts, totals),
        "tokens": tokens,
        **reuse(tokens, facts.earlier_stages.num_cached if facts.earlier_stages else 0),
        **_occupancy(facts, totals),
        "throughput": _throughput(totals, tokens, facts.times.get("infer")),
        "time": {stage: facts.times.get(stage) for stage in (*STAGES, "total")},
        "evaluation": None if facts.evaluation is None else dict(facts.evaluation),
        "gates": [],
        "workers": [_worker(engine) for engine in facts.engines],
        "misses": _misses(tokens, facts.lost_tokens),
        "earlier_stages": _earlier_stages(facts.earlier_stages),
        "failures": count_failures(facts.rows),
        "finish_reasons": totals.finish_reasons,
        "structured": _structured(facts, totals),
        "sequence_groups": _sequence_groups(facts.engines),
        "memory_tiers": memory_tiers(facts.engines),
        "references": facts.references,
        "evaluation_details": None if facts.evaluation_details is None else dict(facts.evaluation_details),
        "limit": limit_of(totals.num_rows, facts.num_rows_left_out),
        "previous": _previous(facts.previous),
    }
    report = _finite(report)
    gates = (*facts.gates, *implied_gates(report))
    return {**report, "gates": [check(gate, report, facts.previous) for gate in gates]}


def implied_gates(report: dict[str, Any]) -> list[str]:
    """A run in which no row succeeded has failed, whatever gates it was given: nobody may take it for a good one."""
    return ["rows.succeeded > 0"] if is_hopeless(report) else []


def is_hopeless(report: dict[str, Any]) -> bool:
    """Whether all rows failed."""
    return report["rows"]["total"] > 0 and report["rows"]["succeeded"] == 0


def describe_verdict(report: dict[str, Any]) -> str | None:
    """What of a finished run went wrong, in a few words; None: nothing."""
    rows, gates = report["rows"], report["gates"]
    if is_hopeless(report):
        return f"all {rows['total']:,} rows failed"
    failed = [f"{rows['failed']:,} of {rows['total']:,} rows failed"] if rows["failed"] else []
    num_failed = sum(not gate["passed"] for gate in gates)
    return ", ".join([*failed, *([f"{num_failed} of {len(gates)} gates failed"] if num_failed else [])]) or None


def limit_of(num_rows: int, num_left_out: int) -> dict[str, int] | None:
    """What input.limit left of the input; None where all of it was run."""
    return {"rows": num_rows, "of": num_rows + num_left_out} if num_left_out else None


def ratio(part: float | None, whole: float | None) -> float | None:
    """part / whole, or None when there is nothing to divide by."""
    return part / whole if part is not None and whole else None


def _run(facts: RunFacts) -> dict[str, Any]:
    return {
        "id": facts.run_id,
        "name": facts.name,
        "fingerprint": facts.fingerprint,
        "model": facts.model,
        "device": facts.device,
        "versions": dict(facts.versions),
        "started_at": facts.started_at,
        "finished_at": facts.finished_at,
    }


def _structured(facts: RunFacts, totals: RowTotals) -> dict[str, int] | None:
    """How constrained completions ended; a cut one is the beginning of what its grammar allows."""
    if not facts.is_structured:
        return None
    return {
        "complete": totals.finish_reasons["stop"],
        "cut": totals.finish_reasons["length"],
        "forced_tokens": sum(engine.num_forced_tokens for engine in facts.engines),
    }


def _previous(report: dict[str, Any] | None) -> dict[str, str] | None:
    """Which run the gates compared with."""
    return None if report is None else {key: report["run"][key] for key in ("id", "finished_at")}


def _rows(facts: RunFacts, totals: RowTotals) -> dict[str, int]:
    return {
        "total": totals.num_rows,
        "succeeded": totals.num_succeeded,
        "failed": totals.num_failed,
        "truncated": totals.num_truncated,
        "deduplicated": facts.num_deduplicated,
    }


def _tokens(facts: RunFacts, totals: RowTotals) -> dict[str, int]:
    """`unique` is the plan's; where planned rows failed later, it cannot exceed the prompts that ran."""
    return {
        "prompt": totals.prompt_tokens,
        "unique": min(facts.plan.num_unique_tokens, totals.prompt_tokens),
        "prefilled": totals.prompt_tokens - totals.cached_tokens,
        "cached": totals.cached_tokens,
        "recomputed": sum(engine.num_recomputed_tokens for engine in facts.engines),
        "completion": totals.completion_tokens,
    }


def reuse(tokens: dict[str, int], num_spared: int) -> dict[str, float | None]:
    """`num_spared`: unique tokens that were cached, since an earlier stage had computed them; the efficiency is of the rest.

    Also what completions or lost units left in the cache may be found: nobody planned that, and it is no better than all.
    """
    reusable = tokens["prompt"] - tokens["unique"]
    reused = max(0, min(tokens["cached"] - num_spared, reusable))
    return {
        "prefix_cache_hit_rate": ratio(tokens["cached"], tokens["prompt"]),
        "prefix_cache_hit_rate_ceiling": ratio(reusable, tokens["prompt"]),
        "reuse_efficiency": ratio(reused, reusable),
    }


def _occupancy(facts: RunFacts, totals: RowTotals) -> dict[str, Any]:
    mean, highest_sample = usage_mean_and_peak(facts.timeline)
    in_steps = [engine.most_blocks / engine.num_blocks for engine in facts.engines if engine.most_blocks]
    peaks = in_steps if highest_sample is None else [highest_sample, *in_steps]  # samples come after steps, which free blocks
    return {
        "gpu_cache_usage_perc": {"mean": mean, "peak": max(peaks, default=None)},
        "num_preemption": sum(engine.num_preemptions for engine in facts.engines),
        "avg_sequence_length": ratio(totals.prompt_tokens + totals.completion_tokens, totals.num_succeeded),
        "max_model_len": facts.max_model_len,
    }


def _throughput(totals: RowTotals, tokens: dict[str, int], infer: float | None) -> dict[str, float | None]:
    return {
        "rows_per_s": ratio(totals.num_succeeded, infer),
        "prompt_tokens_per_s": ratio(tokens["prompt"], infer),
        "prefilled_tokens_per_s": ratio(tokens["prefilled"], infer),
        "completion_tokens_per_s": ratio(tokens["completion"], infer),
    }


def _worker(engine: EngineStats) -> dict[str, Any]:
    seen = engine.num_cached_tokens + engine.num_prefilled_tokens
    figures = {name: value for name, value in asdict(engine).items() if name not in ("groups", "tiers", "most_blocks")}
    return {**figures, "prefix_cache_hit_rate": ratio(engine.num_cached_tokens, seen)}


def _sequence_groups(engines: Sequence[EngineStats]) -> dict[str, Any] | None:
    """What rows with several sequences shared; None where there were none."""
    groups = [engine.groups for engine in engines if engine.groups.num_groups]
    if not groups:
        return None
    held, unshared = sum(group.num_held for group in groups), sum(group.num_unshared for group in groups)
    return {
        "num_groups": sum(group.num_groups for group in groups),
        "blocks_shared": sum(group.num_shared_blocks for group in groups),
        "blocks_copied": sum(group.num_copied_blocks for group in groups),
        "most_blocks_saved": max(group.most_saved for group in groups),
        "memory_saved": ratio(unshared - held, unshared),
    }


def _earlier_stages(found: EarlierStages | None) -> dict[str, int] | None:
    """None in a run without stages."""
    return None if found is None else {"cached_tokens": found.num_cached, "lost_tokens": found.num_lost}


def _misses(tokens: dict[str, int], lost: dict[str, int]) -> dict[str, int]:
    """Tokens that were computed, by cause; together prefilled and recomputed."""
    first_sight = tokens["prefilled"] - sum(lost.values())
    by_cause = {"first_sight": first_sight, **lost, "preempted": tokens["recomputed"]}
    return {cause: by_cause[cause] for cause in MISS_CAUSES}


def memory_shortage(report: dict[str, Any]) -> str | None:
    """In words; None where memory sufficed."""
    short = [worker for worker in report["workers"] if worker["num_out_of_memory"]]
    if not short:
        return None
    times = sum(worker["num_out_of_memory"] for worker in short)
    smallest = min(worker["max_batch_tokens"] or 0 for worker in short)
    return f"ran out {times} time{'s' * (times > 1)}; steps went down to {smallest} tokens"


def computed_again(report: dict[str, Any]) -> list[tuple[str, int]]:
    """(cause in words, tokens) of what was computed for another reason than that it was new."""
    is_alone = len({worker["worker"] for worker in report["workers"]}) == 1  # then only its starts are cuts
    words = {"cut_between_workers": "cut by an interruption"} if is_alone else {}
    return [
        (words.get(cause, cause.replace("_", " ")), number)
        for cause, number in report["misses"].items()
        if number and cause != "first_sight"
    ]


def seconds_of_stages(time: dict[str, float | None]) -> dict[str, float]:
    """In order; what the total has beyond them is `other`."""
    known = {stage: time[stage] or 0.0 for stage in STAGES}
    return {**known, "other": max(0.0, (time["total"] or 0.0) - sum(known.values()))}


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity; what could not be measured is null."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
