"""What a stage of a run had of the stages before it, in words."""

from __future__ import annotations

from typing import Any

from batchpaged.report import formatting as fmt

Report = dict[str, Any]


def num_spared(report: Report) -> int:
    """Tokens that were in the cache because an earlier stage had computed them."""
    return (report.get("earlier_stages") or {}).get("cached_tokens", 0)  # reports of earlier versions have none


def lost_cache(report: Report) -> str | None:
    """Of a stage that went on without the cache of those before it; None where nothing was lost."""
    lost = (report.get("earlier_stages") or {}).get("lost_tokens")
    if not lost:
        return None
    return f"could not use what earlier stages computed before an interruption: up to {fmt.count(lost)} tokens"


def why_rate_fell(figure: str, report: Report) -> str | None:
    """A hit rate, as a gate names it, is lower for what was lost."""
    *path, name = figure.split(".")
    if name != "prefix_cache_hit_rate":
        return None
    return lost_cache(report["stages"][path[1]] if path else report)
