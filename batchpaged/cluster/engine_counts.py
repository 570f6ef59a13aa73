"""What an engine has done in the stage that it serves: facts of a unit, and samples of the timeline."""

from dataclasses import asdict
from typing import Any

from batchpaged.engine.engine import Completion, Engine
from batchpaged.engine.memory_tiers import TierCounts
from batchpaged.engine.sequence import TokenCounts
from batchpaged.engine.sequence_groups import GroupCounts

_SAMPLED = (
    "num_prefilled_tokens", "num_cached_tokens", "num_completion_tokens", "num_preemptions", "num_out_of_memory",
)  # fmt: skip


class EngineCounts:
    """Tokens are those of all rows, also of such as got another row's completion."""

    def __init__(self) -> None:
        self._fanned_out = TokenCounts()
        self._before: dict[str, float] = {}  # as the counters stood when the stage began

    def begin_stage(self, engine: Engine) -> None:
        """Another one than the first: what is counted begins anew."""
        engine.scheduler.groups.counts = GroupCounts()
        if engine.scheduler.tiers is not None:
            engine.scheduler.tiers.counts = TierCounts()
        self._before = self._counters(engine)

    def add_fanned_out(self, completion: Completion, num_rows: int) -> None:
        """So many rows have got it besides the one that was computed."""
        self._fanned_out.cached += completion.num_prompt_tokens * num_rows
        self._fanned_out.generated += completion.num_generated_tokens * num_rows

    def facts(self, engine: Engine) -> dict[str, Any]:
        """JSON-able."""
        return {
            "num_blocks": engine.pool.num_blocks,
            "block_size": engine.pool.block_size,
            "most_blocks": engine.most_blocks,
            "max_batch_tokens": engine.scheduler.max_batch_tokens,
            "groups": asdict(engine.scheduler.groups.counts),
            "tiers": _tier_facts(engine),
            **self._of_this_stage(engine),
        }

    def sample(self, engine: Engine) -> dict[str, float]:
        """Of the timeline."""
        return {
            **{key: count for key, count in self._of_this_stage(engine).items() if key in _SAMPLED},
            "cache_usage": engine.pool.num_referenced / engine.pool.num_blocks,
            "num_running": len(engine.scheduler.running),
            "num_waiting": len(engine.scheduler.waiting),
            "max_batch_tokens": engine.scheduler.max_batch_tokens,
        }

    def _of_this_stage(self, engine: Engine) -> dict[str, float]:
        return {key: count - self._before.get(key, 0) for key, count in self._counters(engine).items()}

    def _counters(self, engine: Engine) -> dict[str, float]:
        """Since the engine's start."""
        counts = engine.scheduler.counts
        return {
            "num_steps": engine.num_steps,
            "busy_seconds": engine.busy_seconds,
            "num_recomputed_tokens": counts.recomputed,
            "num_forced_tokens": counts.forced,
            "num_preemptions": engine.scheduler.num_preemptions,
            "num_out_of_memory": engine.num_out_of_memory,
            "num_prefilled_tokens": counts.prefilled,
            "num_cached_tokens": counts.cached + self._fanned_out.cached,
            "num_completion_tokens": counts.generated + self._fanned_out.generated,
        }


def _tier_facts(engine: Engine) -> dict[str, Any] | None:
    """What lower tiers did, and what moves cost, in seconds; None where there are none."""
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
