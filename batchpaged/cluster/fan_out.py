"""Equal prompts of a unit are computed once, under greedy sampling; the others get the first one's completion."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from batchpaged.engine.engine import Completion


def equal_runs(prompts: Sequence[list[int]]) -> Iterator[range]:
    """Places of prompts that follow each other and are equal; in planned order all equal ones do."""
    start = 0
    for place in range(1, len(prompts) + 1):
        if place == len(prompts) or prompts[place] != prompts[start]:
            yield range(start, place)
            start = place


def fanned_out(outcome: Completion | str) -> Completion | str:
    """What a row gets whose prompt was not computed: the same, and nothing was prefilled for it."""
    if isinstance(outcome, str):
        return outcome
    return replace(
        outcome, num_cached_tokens=outcome.num_prompt_tokens, num_prefilled_tokens=0, num_recomputed_tokens=0
    )
