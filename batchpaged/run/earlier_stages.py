"""What a stage of a run found in the cache of the stages before it, from the facts of units."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from batchpaged.report.facts import EarlierStages

Facts = dict[str, Any]


def earlier_stages(units: Sequence[Facts], before: Sequence[Facts]) -> EarlierStages:
    """`units`: of the stage; `before`: of all stages before it; of either, those with a prompt."""
    return EarlierStages(
        num_cached=sum(unit["reuse"].get("num_spared_tokens", 0) for unit in units),
        num_lost=_num_lost(units, before),
    )


def _num_lost(units: Sequence[Facts], before: Sequence[Facts]) -> int:
    """Prompt tokens that they had computed in another start of the run, whose engines are gone: where units of the stage are of
    several starts, for the one that lacked most."""
    computed: Counter[str | None] = Counter()
    for unit in before:
        computed[unit.get("start")] += unit["reuse"]["num_prefilled_tokens"]
    starts = {unit.get("start") for unit in units if unit["reuse"]["has_cache"]}
    return max((computed.total() - computed[start] for start in starts), default=0)
