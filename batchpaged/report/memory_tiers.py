"""What host memory and disk kept for the KV cache: the report's `memory_tiers`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from batchpaged.report.facts import EngineStats

_AT_ONE_TIME = ("blocks", "most_used")


def memory_tiers(engines: Sequence[EngineStats]) -> dict[str, Any] | None:
    """What host memory and disk kept for the KV cache; None where the pipeline gives neither. Costs are of the last engine."""
    having = [engine for engine in engines if engine.tiers is not None]
    if not having:
        return None
    num_swaps = _sum(having, "num_swaps")
    last = having[-1].tiers
    return {
        "host": {"blocks": _sum(having, "num_frames"), "most_used": _sum(having, "most_in_host"), "saved": _sum(having, "num_saved")},
        "disk": {
            "blocks": _sum(having, "num_disk_slots"),
            "most_used": _sum(having, "most_on_disk"),
            "written": _sum(having, "num_written"),
            "read": _sum(having, "num_read"),
        },
        "blocks_loaded": _sum(having, "num_loaded"),
        "tokens_loaded": sum(engine.tiers.num_loaded * engine.block_size for engine in having),
        "blocks_dropped": _sum(having, "num_dropped"),
        "blocks_lost": _sum(having, "num_lost"),
        "preemptions": {
            "swapped": num_swaps,
            "recomputed": sum(engine.num_preemptions for engine in having) - num_swaps,
        },
        "seconds_per_block": {
            "compute": last.token_seconds * having[-1].block_size,
            "save": last.save_seconds,
            "load": last.load_seconds,
            "read": last.read_seconds,
        },
    }


def _sum(engines: Sequence[EngineStats], name: str) -> int:
    return sum(getattr(engine.tiers, name) for engine in engines)


def of_all_stages(stages: Sequence[Mapping[str, Any] | None]) -> dict[str, Any] | None:
    """One after the other, on the same engines: room is there once, moves add up, and costs are those of the last stage."""
    found = [tiers for tiers in stages if tiers is not None]
    if not found:
        return None
    return _joined("memory_tiers", found)


def _joined(key: str, values: Sequence[Any]) -> Any:
    if key == "seconds_per_block":
        return values[-1]
    if isinstance(values[0], Mapping):
        return {inner: _joined(inner, [value[inner] for value in values]) for inner in values[0]}
    return max(values) if key in _AT_ONE_TIME else sum(values)
