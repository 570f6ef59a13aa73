"""Numbers as people read them. None, an absent value, is a dash everywhere."""

from __future__ import annotations

from datetime import datetime
from typing import Any

ABSENT = "–"
_SUFFIXES = ((1e12, "T"), (1e9, "B"), (1e6, "M"))


def count(value: float | None) -> str:
    """308,112"""
    return ABSENT if value is None else f"{value:,.0f}"


def compact(value: float | None) -> str:
    """Exact below ten million, then three figures: 308,112 or 12.3 M."""
    if value is None or abs(value) < 1e7:
        return count(value)
    size, suffix = next(pair for pair in _SUFFIXES if abs(value) >= pair[0])
    return f"{value / size:.3g} {suffix}" if abs(value) < 999.5 * size else f"{value / size:,.0f} {suffix}"


def rate(value: float | None) -> str:
    """Three figures that matter: 0.0123, 3.21, 45.1, 1,234."""
    if value is None:
        return ABSENT
    if abs(value) >= 99.95:
        return compact(value)
    return f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.3g}"


def percent(value: float | None) -> str:
    """One decimal; 100.0% and 0.0% only when exact, since the last row is the one that is looked for."""
    if value is None:
        return ABSENT
    if 0.9995 <= value < 1:
        return "99.9%"
    if 0 < value < 0.0005:
        return "<0.1%"
    return f"{value * 100:.1f}%"


def seconds(value: float | None) -> str:
    """0.45 s, 12.3 s, 3 min 12 s, 2 h 05 min, 3 d 04 h"""
    if value is None:
        return ABSENT
    if value < 59.95:
        return f"{value:.1f} s" if value >= 9.995 else f"{value:.2f} s"
    whole = round(value)
    for size, unit, smaller, name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // smaller:02d} {name}"
    return f"{whole} s"


def milliseconds(seconds: float | None) -> str:
    """1.24 ms: of what takes less than a second"""
    return ABSENT if seconds is None else f"{rate(1000 * seconds)} ms"


def gate_value(value: float | None) -> str:
    """As in report.json, to six figures: what the gate compared, not a rounding that hides why it failed."""
    if value is None:
        return ABSENT
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"


def gate_result(gate: dict[str, Any]) -> str:
    """0.61, or `0.61, previous 0.63` where the gate compares with the previous good run; and why it may have failed, where that is known."""
    parts = [gate_value(gate["value"])]
    if "previous" in gate:
        parts.append("no previous" if gate["previous"] is None else f"previous {gate_value(gate['previous'])}")
    if "limit" in gate and not gate["passed"]:
        parts.append(f"only {count(gate['limit']['rows'])} of {count(gate['limit']['of'])} rows were run (input.limit)")
    return ", ".join([*parts, *([gate["note"]] if "note" in gate else [])])


def rows_of_metrics(report: dict[str, Any]) -> dict[str, int]:
    """Metric -> rows in its mean, where these are not the same for all; else nothing."""
    details = report.get("evaluation_details") or {}
    counts = {name: detail["num_rows"] for name, detail in details.items() if "num_rows" in detail}
    return counts if len(set(counts.values())) > 1 else {}


def plural(number: int, noun: str) -> str:
    """1 row, 2 rows, 1,204 rows"""
    return f"{count(number)} {noun}" if number == 1 else f"{count(number)} {noun}s"


def moment(iso: str) -> str:
    """2026-03-01 02:15 UTC; a string that is no ISO-8601 moment is shown as it is."""
    try:
        when = datetime.fromisoformat(iso.replace("Z", "+00:00"))
    except ValueError:
        return iso
    return f"{when:%Y-%m-%d %H:%M}" + (" UTC" if when.utcoffset() is not None else "")


def interval(details: dict | None) -> str:
    """`[0.4321, 0.5012]`; empty where there is none."""
    if not details or details["low"] is None:
        return ""
    return f"[{details['low']:.4f}, {details['high']:.4f}]"


def memory_tiers(tiers: dict[str, Any], dot: str) -> str:
    """Of the report's `memory_tiers`, in one line."""
    parts = [f"{count(tiers['host']['saved'])} blocks saved in host memory"]
    if tiers["disk"]["blocks"]:
        parts.append(f"{count(tiers['disk']['written'])} written to disk")
    parts.append(f"{count(tiers['blocks_loaded'])} loaded again ({compact(tiers['tokens_loaded'])} tokens)")
    preempted = tiers["preemptions"]
    if any(preempted.values()):
        parts.append(f"{count(preempted['swapped'])} of {count(sum(preempted.values()))} preemptions swapped")
    if tiers["blocks_lost"]:
        parts.append("the disk lost blocks, which were computed again")
    return dot.join(parts)
