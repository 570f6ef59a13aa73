"""What a diagnosis gives back. Row ids, names and counts; never a word of a row."""

from dataclasses import dataclass
from typing import Literal

Cause = Literal[
    "varying_field", "context_order", "whitespace", "short_prefix", "template_variants", "prefix_cache_off"
]


@dataclass(frozen=True)
class Finding:
    """One cause of lost reuse. Counts are of the rows looked at, see Diagnosis."""

    cause: Cause
    what: str  # what does it and where, in words
    way_out: str  # what to change in the pipeline file or the data
    num_rows: int  # rows that would share more with another row
    example_rows: tuple[str, ...]  # ids of rows that show it when they are compared
    num_tokens: int  # prompt tokens that are computed because of it
    hit_rate: float  # prefix cache hit rate, at best, without it
    after: tuple[Cause, ...] = ()  # it costs nothing before these are gone too; num_tokens and hit_rate assume that
    num_tokens_elsewhere: int = 0  # computed again by a cache that shares whole blocks only
    hit_rate_elsewhere: float | None = None  # such a cache's


@dataclass(frozen=True)
class Diagnosis:
    findings: tuple[Finding, ...]  # what costs most first
    num_rows: int  # looked at
    num_rows_total: int  # of the input
    num_prompt_tokens: int | None  # of the rows looked at; None where nothing was suspected and so nothing counted
    num_unique_tokens: int | None

    @property
    def is_sample(self) -> bool:
        return self.num_rows < self.num_rows_total

    @property
    def hit_rate(self) -> float | None:
        """The ceiling, of the rows looked at, as they are."""
        if not self.num_prompt_tokens or self.num_unique_tokens is None:
            return None
        return 1 - self.num_unique_tokens / self.num_prompt_tokens
