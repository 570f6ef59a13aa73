"""What of a unit's prompts had to be computed, and what was: the report tells from it why tokens were."""

from collections.abc import Iterable

import numpy as np

from batchpaged.engine.engine import Completion
from batchpaged.engine.sequence import common_prefix_length


def unit_reuse(
    computed: Iterable[tuple[list[int], Completion | str | None]], before: list[int] | None, has_cache: bool
) -> dict[str, int | bool]:
    """`computed`: prompts in planned order and what became of them; `before`: the last prompt of the unit before.

    A prompt shares most with the one before it, so what it shares with that one is all that it need not compute.
    """
    sums = {"num_prefilled_tokens": 0, "num_unique_tokens": 0, "num_last_tokens": 0, "num_shared_tokens": 0}
    is_first, previous = True, np.asarray(before or [], dtype=np.int32)
    for token_ids, completion in computed:
        if not isinstance(completion, Completion):
            continue
        prompt = np.asarray(token_ids, dtype=np.int32)
        num_shared = common_prefix_length(previous, prompt)
        sums["num_prefilled_tokens"] += completion.num_prefilled_tokens
        sums["num_unique_tokens"] += len(prompt) - num_shared
        if num_shared == len(prompt):  # an equal prompt computes its last token, unless it is fanned out
            sums["num_last_tokens"] += min(1, completion.num_prefilled_tokens)
        if is_first:
            sums["num_shared_tokens"] = num_shared
        is_first, previous = False, prompt
    return {"has_cache": has_cache, **sums}
