"""Prompts that share less than a block: nothing is lost here, where parts of blocks are copied, but elsewhere."""

from collections.abc import Sequence

import numpy as np

from batchpaged.config import EngineConfig
from batchpaged.planning.diagnosis.findings import Cause, Finding
from batchpaged.planning.diagnosis.proposal import WORTH_SAYING
from batchpaged.planning.diagnosis.sharing import Sharing


def find_short_prefixes(
    sharing: Sharing, row_ids: Sequence[str], engine: EngineConfig, after: tuple[Cause, ...]
) -> list[Finding]:
    """`sharing` is without the causes in `after`: what they explain is not told twice."""
    is_short = (sharing.longest > 0) & (sharing.longest < engine.block_size)
    num_lost = sharing.num_shared[is_short].sum()
    if num_lost < max(1, WORTH_SAYING * sharing.num_items):
        return []
    row = int(np.flatnonzero(is_short & (sharing.num_shared > 0))[0])
    return [
        Finding(
            cause="short_prefix",
            what=f"rows share at most {sharing.longest[is_short].max()} tokens, and a block has {engine.block_size}",
            way_out="nothing here, parts of blocks are copied; elsewhere, put more of what rows share at the start",
            num_rows=int(is_short.sum()),
            example_rows=tuple(sorted({row_ids[row], row_ids[sharing.before[row]]})),
            num_tokens=0 if engine.prefix_cache else int(num_lost),
            hit_rate=1 - sharing.num_unique / sharing.num_items,
            after=after,
            num_tokens_elsewhere=int(num_lost),
            hit_rate_elsewhere=1 - (sharing.num_unique + int(num_lost)) / sharing.num_items,
        )
    ]


def find_prefix_cache_off(sharing: Sharing, engine: EngineConfig, row_ids: Sequence[str]) -> list[Finding]:
    num_lost = sharing.num_items - sharing.num_unique
    if engine.prefix_cache or num_lost < max(1, WORTH_SAYING * sharing.num_items):
        return []
    row = int(sharing.longest.argmax())
    return [
        Finding(
            cause="prefix_cache_off",
            what="engine.prefix_cache is false: every prompt is computed in full",
            way_out="set engine.prefix_cache: true",
            num_rows=int((sharing.longest > 0).sum()),
            example_rows=(row_ids[row],),
            num_tokens=num_lost,
            hit_rate=1 - sharing.num_unique / sharing.num_items,
        )
    ]
