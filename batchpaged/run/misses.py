"""Why tokens were computed that the prefix tree of the whole data set did not ask for."""

from collections.abc import Iterable
from typing import Any


def lost_tokens(units: Iterable[dict[str, Any]]) -> dict[str, int]:
    """Tokens by cause, from the facts of all units with a prompt, in planned order.

    A unit that another engine computed than the unit before it cannot share that one's cache. What is lost beyond
    these tokens, and the last ones of equal prompts, was evicted. Engines share tokens between their units in either
    direction, so only the sum over all units is exact.
    """
    lost = {"evicted": 0, "cut_between_workers": 0, "last_token": 0, "cache_off": 0}
    session = None
    for unit in units:
        reuse = unit["reuse"]
        num_again = reuse["num_prefilled_tokens"] - reuse["num_unique_tokens"] + reuse.get("num_spared_tokens", 0)
        if not reuse["has_cache"]:
            lost["cache_off"] += num_again
        else:
            num_again -= reuse["num_last_tokens"]
            num_cut = 0 if session in (None, unit["session"]) else min(max(0, num_again), reuse["num_shared_tokens"])
            lost["last_token"] += reuse["num_last_tokens"]
            lost["cut_between_workers"] += num_cut
            lost["evicted"] += num_again - num_cut
        session = unit["session"]
    # Tokens that a lost unit computed, and a finished one shared, can make the rest negative.
    return {cause: max(0, num_tokens) for cause, num_tokens in lost.items()}
