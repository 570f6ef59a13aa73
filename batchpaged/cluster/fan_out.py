"""Equal rows of a unit are computed once, under greedy sampling; the others get the first one's completion."""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace

from batchpaged.engine.engine import Completion


def equal_rows(prompts: Sequence[list[int]], kinds: Sequence[Hashable]) -> Iterator[list[int]]:
    """Places of rows whose prompts follow each other and are equal, and whose kinds are; of each, in order, from the first.

    A kind is all else that a completion depends on.
    """
    for run in equal_runs(prompts):
        places: dict[Hashable, list[int]] = {}
        for place in run:
            places.setdefault(kinds[place], []).append(place)
        yield from places.values()


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
        outcome,
        num_cached_tokens=outcome.num_prompt_tokens,
        num_prefilled_tokens=0,
        num_recomputed_tokens=0,
        num_earlier_tokens=0,
    )
