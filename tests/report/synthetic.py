"""Made-up runs: the facts a real run would hand over, without a model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa

from batchpaged.report.facts import ROWS_SCHEMA, TIMELINE_SCHEMA, EngineStats, PlanFacts, RunFacts


def make_rows(rows: list[tuple[Any, ...]]) -> pa.Table:
    """Tuples in the order of ROWS_SCHEMA."""
    columns = list(zip(*rows)) or [()] * len(ROWS_SCHEMA)
    return pa.table([pa.array(column, field.type) for column, field in zip(columns, ROWS_SCHEMA)], schema=ROWS_SCHEMA)


def make_timeline(samples: list[tuple[Any, ...]]) -> pa.Table:
    """Tuples in the order of TIMELINE_SCHEMA."""
    columns = list(zip(*samples)) or [()] * len(TIMELINE_SCHEMA)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, TIMELINE_SCHEMA)]
    return pa.table(arrays, schema=TIMELINE_SCHEMA)


def make_facts(**changes: Any) -> RunFacts:
    """A small run by hand: four rows, one of them failed; 300 prompt tokens, 180 cached, 120 prefilled."""
    facts = RunFacts(
        run_id="20260301-021500-7f3a",
        name="rag_eval",
        fingerprint="9b1c5a",
        model="smollm2-135m-instruct",
        device="cpu",
        versions={"batchpaged": "0.1.0"},
        started_at="2026-03-01T02:15:00+00:00",
        finished_at="2026-03-01T02:15:20Z",
        plan=PlanFacts(4, 300, 100, 1, 120, 2),
        rows=make_rows(
            [
                ("a", "ok", None, "stop", 100, 0, 5),
                ("b", "ok", None, "length", 120, 110, 8),
                ("c", "failed", "prompt has 2,134 tokens; 2,016 fit", None, 2134, None, None),
                ("d", "truncated", None, "stop", 80, 70, 2),
            ]
        ),
        engines=(EngineStats("w0", "cpu", 64, 16, 120, 180, 7, 15, 1, 9, 4.5),),
        timeline=make_timeline(
            [
                (0.0, "0", 0, 0, 0, 0.0, 0, 3, 0),
                (1.0, "0", 100, 0, 0, 0.5, 1, 2, 0),
                (2.0, "0", 110, 110, 9, 1.0, 2, 0, 1),
                (5.0, "0", 120, 180, 15, 0.0, 0, 0, 1),
            ]
        ),
        times={"load": 1.0, "read": 0.5, "tokenize": 0.25, "plan": 0.25, "infer": 5.0, "assemble": 0.5, "total": 8.0},
        evaluation={"exact_match": 0.5, "f1": 0.625, "num_evaluated": 4},
        evaluation_details={
            "exact_match": {"low": 0.25, "high": 0.75, "num_rows": 4, "errors": {}},
            "f1": {"low": 0.5, "high": 0.875, "num_rows": 4, "errors": {"ValueError": 1}},
        },
        gates=("prefix_cache_hit_rate >= 0.5", "failed_rows <= 0"),
        max_model_len=2048,
        num_deduplicated=0,
        lost_tokens={"evicted": 12, "cut_between_workers": 8, "last_token": 0, "cache_off": 0},
    )
    return replace(facts, **changes)
