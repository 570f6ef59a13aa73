"""What a finished run hands to the report: plain facts, no derived figure among them.

Whole-run facts describe the run, not the last sitting: a run that was interrupted and went on is reported as one.
The row table holds no text beyond ids and reasons, so a report can be shared where the prompts cannot.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

# Where rows have several completions, finish_reason and completion_tokens are lists of these types.
ROWS_SCHEMA = pa.schema(
    [
        ("row_id", pa.string()),
        ("status", pa.string()),  # ok | truncated | failed
        ("error", pa.string()),  # null unless failed
        ("finish_reason", pa.string()),  # stop | length; null if failed
        ("prompt_tokens", pa.int32()),
        ("cached_tokens", pa.int32()),
        ("completion_tokens", pa.int32()),
    ]
)

TIMELINE_SCHEMA = pa.schema(
    [
        ("t", pa.float64()),  # seconds since inference began
        ("worker", pa.string()),
        ("num_prefilled_tokens", pa.int64()),  # these three and num_preemptions: cumulative
        ("num_cached_tokens", pa.int64()),
        ("num_completion_tokens", pa.int64()),
        ("cache_usage", pa.float64()),  # referenced blocks / all blocks
        ("num_running", pa.int64()),
        ("num_waiting", pa.int64()),
        ("num_preemptions", pa.int64()),
    ]
)

# Why tokens were computed: because they were new, and again for one of these.
LOSS_CAUSES = ("evicted", "cut_between_workers", "last_token", "cache_off")
MISS_CAUSES = ("first_sight", *LOSS_CAUSES, "preempted")
STAGES = ("load", "read", "tokenize", "plan", "infer", "assemble")


@dataclass(frozen=True)
class PlanFacts:
    """What the plan knew before the first token; failed prompts are in num_rows only."""

    num_rows: int
    num_prompt_tokens: int
    num_unique_tokens: int  # prompt tokens left if every shared prefix were computed once
    num_duplicates: int  # rows whose prompt another row has too, beyond the first
    longest_prompt: int  # tokens
    num_units: int


@dataclass(frozen=True)
class GroupStats:
    """Of rows with several sequences, which share blocks."""

    num_groups: int = 0  # rows whose sequences have parted
    num_shared_blocks: int = 0  # times that a sequence took over a block of another one of its row
    num_copied_blocks: int = 0  # copied because they were to be written and others held them
    num_held: int = 0  # blocks that these rows held, summed over steps
    num_unshared: int = 0  # the same if each sequence had blocks of its own
    most_saved: int = 0  # blocks that sharing has saved in one step


@dataclass(frozen=True)
class TierStats:
    """Of host memory and disk below the KV cache, in blocks; seconds are what one of them costs."""

    num_frames: int  # of the host tier
    num_disk_slots: int  # of the disk tier
    most_in_host: int
    most_on_disk: int
    num_saved: int  # evicted from the KV cache to host memory
    num_loaded: int  # into the KV cache again, from either tier
    num_written: int  # from host memory to disk
    num_read: int  # from disk
    num_dropped: int  # still needed, but there was no room
    num_lost: int  # times that a block could not be read again
    num_swaps: int  # preempted sequences whose blocks were kept for them
    token_seconds: float  # to compute one prompt token
    save_seconds: float
    load_seconds: float
    read_seconds: float | None  # None: no disk tier


@dataclass(frozen=True)
class EngineStats:
    """Totals of one worker session: one engine, from its start to its end."""

    worker: str
    device: str
    num_blocks: int
    block_size: int  # slots
    num_prefilled_tokens: int  # computed for the first time
    num_cached_tokens: int
    num_recomputed_tokens: int  # computed again after a preemption
    num_completion_tokens: int
    num_preemptions: int
    num_steps: int
    busy_seconds: float  # spent inside scheduler steps
    num_out_of_memory: int = 0  # steps given up for want of memory, and computed again in smaller ones
    num_forced_tokens: int = 0  # of num_completion_tokens: a grammar left no choice about them
    most_blocks: int = 0  # that were referenced during a step; 0 also where nobody counted
    max_batch_tokens: int | None = None  # token budget at the end: less than the pipeline's once memory has run out
    groups: GroupStats = GroupStats()
    tiers: TierStats | None = None


@dataclass(frozen=True)
class EarlierStages:
    """What a stage found in the cache of those before it, in prompt tokens."""

    num_cached: int  # of its unique tokens: no row of the stage had to compute them
    num_lost: int  # computed by those stages in another start of the run, so that they could not be there


@dataclass(frozen=True)
class RunFacts:
    """Everything the report is made from."""

    run_id: str
    name: str
    fingerprint: str
    model: str
    device: str
    versions: dict[str, str]  # package -> version
    started_at: str  # ISO-8601, UTC
    finished_at: str  # ISO-8601, UTC
    plan: PlanFacts
    rows: pa.Table  # ROWS_SCHEMA; one row per input row, in input order
    engines: tuple[EngineStats, ...]
    timeline: pa.Table  # TIMELINE_SCHEMA; any order
    times: dict[str, float]  # STAGES and "total" -> seconds
    evaluation: dict[str, float | None] | None  # metric -> value
    gates: tuple[str, ...]
    max_model_len: int
    num_deduplicated: int  # rows that got an equal row's completion
    lost_tokens: dict[str, int]  # LOSS_CAUSES -> prompt tokens
    is_structured: bool = False  # completions follow grammars
    references: str | None = None  # column that the completions were compared with
    evaluation_details: dict[str, dict[str, Any]] | None = None  # metric -> {low, high, num_rows, errors}
    num_rows_left_out: int = 0  # of the input, by input.limit
    earlier_stages: EarlierStages | None = None  # of a stage
    previous: dict[str, Any] | None = None  # report of the previous good run, where a gate compares with it
