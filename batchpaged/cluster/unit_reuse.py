"""What of a unit's prompts had to be computed, and what was: the report tells from it why tokens were."""

from collections.abc import Iterable

import numpy as np

from batchpaged.engine.engine import Completion
from batchpaged.engine.sequence import common_prefix_length


def unit_reuse(
    computed: Iterable[tuple[list[int], Completion | str | None]],
    before: list[int] | None,
    has_cache: bool,
    is_judged: bool = False,
) -> dict[str, int | bool]:
    """`computed`: prompts in planned order and what became of them; `before`: the last prompt of the unit before;
    `is_judged`: the log-probabilities of prompt tokens were wanted.

    A prompt shares most with the one before it, so what it shares with that one is all that it need not compute, but for what an
    earlier stage computed: of its unique tokens those are spared.
    """
    names = ("num_prefilled_tokens", "num_unique_tokens", "num_spared_tokens", "num_last_tokens", "num_shared_tokens")
    sums = dict.fromkeys(names, 0)
    is_first, previous = True, np.asarray(before or [], dtype=np.int32)
    for token_ids, completion in computed:
        if not isinstance(completion, Completion):
            continue
        prompt = np.asarray(token_ids, dtype=np.int32)
        num_shared = common_prefix_length(previous, prompt)
        sums["num_prefilled_tokens"] += completion.num_prefilled_tokens
        num_unique = len(prompt) - num_shared
        num_spared = max(0, completion.num_earlier_tokens - num_shared)
        sums["num_unique_tokens"] += num_unique
        sums["num_spared_tokens"] += num_spared
        # An equal prompt computes its last token, unless it is fanned out; one that is judged the last that it shares.
        num_last = (num_shared == len(prompt)) + (is_judged and num_shared > 0)
        num_again = completion.num_prefilled_tokens - (num_unique - num_spared)
        sums["num_last_tokens"] += min(num_last, max(0, num_again))
        if is_first:
            sums["num_shared_tokens"] = num_shared
        is_first, previous = False, prompt
    return {"has_cache": has_cache, **sums}
