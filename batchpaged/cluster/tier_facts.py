"""What an engine's lower tiers did, as facts of a unit."""

from dataclasses import asdict
from typing import Any

from batchpaged.engine.engine import Engine
from batchpaged.engine.memory_tiers import TierCounts


def count_tiers_anew(engine: Engine) -> None:
    if engine.scheduler.tiers is not None:
        engine.scheduler.tiers.counts = TierCounts()


def tier_facts(engine: Engine) -> dict[str, Any] | None:
    """Counts so far, and what moves cost, in seconds. JSON-able; None without lower tiers."""
    tiers = engine.scheduler.tiers
    if tiers is None:
        return None
    costs = tiers.costs
    return {
        **asdict(tiers.counts),
        "num_frames": tiers.host.num_places,
        "num_disk_slots": tiers.disk.num_places,
        "token_seconds": costs.token,
        "save_seconds": costs.save,
        "load_seconds": costs.load,
        "read_seconds": costs.read if tiers.disk.num_places else None,
    }
