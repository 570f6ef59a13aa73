import json
import math
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from report.synthetic import make_facts, make_rows, make_timeline

from batchpaged.report import formatting as fmt
from batchpaged.report.distributions import count_lengths
from batchpaged.report.facts import LOSS_CAUSES, ROWS_SCHEMA, EarlierStages, GroupStats, PlanFacts, TierStats
from batchpaged.report.json import to_json
from batchpaged.report.memory_tiers import of_all_stages
from batchpaged.report.metrics import build_report, computed_again, describe_verdict, reuse

CONTRACT = {
    "run": {"id", "name", "fingerprint", "model", "device", "versions", "started_at", "finished_at"},
    "rows": {"total", "succeeded", "failed", "truncated", "deduplicated"},
    "tokens": {"prompt", "unique", "prefilled", "cached", "recomputed", "completion"},
    "prefix_cache_hit_rate": None,
    "prefix_cache_hit_rate_ceiling": None,
    "reuse_efficiency": None,
    "gpu_cache_usage_perc": {"mean", "peak"},
    "num_preemption": None,
    "avg_sequence_length": None,
    "max_model_len": None,
    "throughput": {"rows_per_s", "prompt_tokens_per_s", "prefilled_tokens_per_s", "completion_tokens_per_s"},
    "time": {"load", "read", "tokenize", "plan", "infer", "assemble", "total"},
    "evaluation": None,
    "gates": None,
    "workers": None,
    "misses": None,
    "earlier_stages": None,
    "failures": None,
    "finish_reasons": None,
    "structured": None,
    "sequence_groups": None,
    "memory_tiers": None,
    "references": None,
    "evaluation_details": None,
    "limit": None,
    "previous": None,
}


NOTHING_LOST = dict.fromkeys(LOSS_CAUSES, 0)


def test_the_report_has_exactly_the_fields_of_the_contract() -> None:
    report = build_report(make_facts())
    assert list(report) == list(CONTRACT)
    for field, keys in CONTRACT.items():
        assert keys is None or set(report[field]) == keys, field


def test_a_run_by_hand() -> None:
    report = build_report(make_facts())
    assert report["rows"] == {"total": 4, "succeeded": 3, "failed": 1, "truncated": 1, "deduplicated": 0}
    tokens = {"prompt": 300, "unique": 100, "prefilled": 120, "cached": 180, "recomputed": 7, "completion": 15}
    assert report["tokens"] == tokens
    assert report["prefix_cache_hit_rate"] == 0.6
    assert report["prefix_cache_hit_rate_ceiling"] == pytest.approx(2 / 3)
    assert report["reuse_efficiency"] == 0.9
    # Trapezoids over 5 s: 0.25 + 0.75 + 1.5.
    assert report["gpu_cache_usage_perc"] == {"mean": 0.5, "peak": 1.0}
    assert report["num_preemption"] == 1
    assert report["avg_sequence_length"] == 105.0
    assert report["throughput"] == {
        "rows_per_s": 0.6,
        "prompt_tokens_per_s": 60.0,
        "prefilled_tokens_per_s": 24.0,
        "completion_tokens_per_s": 3.0,
    }
    assert report["evaluation"] == {"exact_match": 0.5, "f1": 0.625, "num_evaluated": 4}
    assert report["gates"] == [
        {"gate": "prefix_cache_hit_rate >= 0.5", "value": 0.6, "passed": True},
        {"gate": "failed_rows <= 0", "value": 1, "passed": False},
    ]
    lost = {"evicted": 12, "cut_between_workers": 8, "last_token": 0, "cache_off": 0}
    assert report["misses"] == {"first_sight": 100, **lost, "preempted": 7}
    assert report["failures"] == {"prompt has 2,134 tokens; 2,016 fit": 1}
    assert report["finish_reasons"] == {"stop": 2, "length": 1}
    assert report["workers"][0]["prefix_cache_hit_rate"] == 0.6


def test_the_peak_is_of_steps_whose_blocks_were_free_again_when_samples_were_taken() -> None:
    [engine] = make_facts().engines[:1]
    samples = [(float(t), "0", 0, 0, 0, 0.0, 0, 0, 0) for t in range(2)]
    busy = replace(engine, num_blocks=10, most_blocks=3)
    report = build_report(make_facts(engines=(busy,), timeline=make_timeline(samples)))
    assert report["gpu_cache_usage_perc"] == {"mean": 0.0, "peak": 0.3}
    assert "most_blocks" not in report["workers"][0]


def test_ratios_without_a_denominator_are_null() -> None:
    report = build_report(
        make_facts(
            rows=make_rows([]),
            plan=PlanFacts(0, 0, 0, 0, 0, 0),
            engines=(),
            timeline=make_timeline([]),
            times={"infer": 0.0, "total": 0.1},
            evaluation=None,
            gates=("prefix_cache_hit_rate >= 0",),
            lost_tokens=NOTHING_LOST,
        )
    )
    for field in ("prefix_cache_hit_rate", "prefix_cache_hit_rate_ceiling", "reuse_efficiency", "avg_sequence_length"):
        assert report[field] is None, field
    assert report["gpu_cache_usage_perc"] == {"mean": None, "peak": None}
    assert set(report["throughput"].values()) == {None}
    assert report["time"]["load"] is None
    assert report["gates"] == [{"gate": "prefix_cache_hit_rate >= 0", "value": None, "passed": False}]


def test_nothing_shared_leaves_reuse_efficiency_null() -> None:
    facts = make_facts(rows=make_rows([("a", "ok", None, "stop", 9, 0, 1)]), plan=PlanFacts(1, 9, 9, 0, 9, 1))
    report = build_report(facts)
    assert report["prefix_cache_hit_rate_ceiling"] == 0.0
    assert report["reuse_efficiency"] is None


def test_what_earlier_stages_computed_is_no_part_of_the_reuse_efficiency() -> None:
    """Of 180 cached tokens 60 are among the 100 unique ones; the 120 others are 0.6 of the 200 that rows share."""
    report = build_report(make_facts(earlier_stages=EarlierStages(num_cached=60, num_lost=0)))
    assert (report["prefix_cache_hit_rate"], report["reuse_efficiency"]) == (0.6, 0.6)
    assert report["earlier_stages"] == {"cached_tokens": 60, "lost_tokens": 0}


@given(*[st.integers(0, 100)] * 4)
def test_the_reuse_efficiency_is_a_share(cached: int, prefilled: int, unique: int, spared: int) -> None:
    tokens = {"prompt": cached + prefilled, "unique": min(unique, cached + prefilled), "cached": cached}
    efficiency = reuse(tokens, spared)["reuse_efficiency"]
    assert (efficiency is None) == (tokens["prompt"] == tokens["unique"]) and 0 <= (efficiency or 0) <= 1


def test_planned_rows_that_failed_later_do_not_make_the_ceiling_negative() -> None:
    report = build_report(make_facts(plan=PlanFacts(4, 2434, 2200, 1, 2134, 2)))
    assert report["tokens"]["unique"] == 300
    assert report["prefix_cache_hit_rate_ceiling"] == 0.0


def test_preemptions_add_up_over_worker_sessions() -> None:
    engine = make_facts().engines[0]
    other = replace(engine, worker="w1", num_preemptions=2, num_recomputed_tokens=1)
    report = build_report(make_facts(engines=(engine, other)))
    assert report["misses"]["preempted"] == 8
    assert (report["num_preemption"], report["tokens"]["recomputed"]) == (3, 8)
    assert [worker["worker"] for worker in report["workers"]] == ["w0", "w1"]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_figure_that_is_no_number_becomes_null(value: float) -> None:
    report = build_report(
        make_facts(evaluation={"f1": value}, gates=("f1 >= 0",), times={"infer": value, "load": value})
    )
    assert report["evaluation"] == {"f1": None}
    assert report["time"]["load"] is None
    assert report["gates"][0]["passed"] is False
    json.loads(to_json(report), parse_constant=pytest.fail)


@st.composite
def row_tuples(draw: st.DrawFn) -> tuple[Any, ...]:
    status = draw(st.sampled_from(["ok", "ok", "truncated", "failed"]))
    prompt = draw(st.integers(1, 5000))
    if status == "failed":
        return ("r", status, draw(st.none() | st.sampled_from(["too long", "null"])), None, prompt, None, None)
    cached = draw(st.integers(0, prompt - 1))
    return ("r", status, None, draw(st.sampled_from(["stop", "length"])), prompt, cached, draw(st.integers(0, 64)))


LOST = st.fixed_dictionaries(dict.fromkeys(LOSS_CAUSES, st.integers(0, 50)))


@given(st.lists(row_tuples(), max_size=30), st.floats(0, 1), st.floats(0, 100), LOST)
def test_identities(rows: list[tuple[Any, ...]], shared: float, infer: float, lost: dict[str, int]) -> None:
    ran = [row for row in rows if row[1] != "failed"]
    prompt, cached = sum(row[4] for row in ran), sum(row[5] for row in ran)
    unique = min(prompt, max(len(ran) and 1, round((1 - shared) * (prompt - cached))))
    plan = PlanFacts(len(rows), prompt, unique, 0, 0, 1)
    facts = make_facts(rows=make_rows(rows), plan=plan, times={"infer": infer}, lost_tokens=lost)
    report = json.loads(to_json(build_report(facts)), parse_constant=pytest.fail)
    counts, tokens = report["rows"], report["tokens"]
    assert counts["succeeded"] + counts["failed"] == counts["total"] == len(rows)
    assert counts["truncated"] <= counts["succeeded"]
    assert sum(report["failures"].values()) == counts["failed"]
    assert sum(report["finish_reasons"].values()) == counts["succeeded"]
    assert tokens["cached"] + tokens["prefilled"] == tokens["prompt"] == prompt
    assert sum(report["misses"].values()) == tokens["prefilled"] + tokens["recomputed"]
    if prompt:
        assert 0 <= report["prefix_cache_hit_rate"] <= report["prefix_cache_hit_rate_ceiling"] <= 1
        assert report["prefix_cache_hit_rate"] * prompt == pytest.approx(cached)
    if prompt > tokens["unique"]:
        assert report["reuse_efficiency"] == (prompt - tokens["prefilled"]) / (prompt - tokens["unique"]) <= 1


def test_rows_in_many_chunks_are_the_same_rows() -> None:
    rows = make_facts().rows
    chunked = pa.concat_tables([rows.slice(i, 1) for i in range(rows.num_rows)])
    assert build_report(make_facts(rows=chunked)) == build_report(make_facts())


def test_structured_says_how_constrained_completions_ended() -> None:
    assert build_report(make_facts())["structured"] is None
    assert build_report(make_facts(is_structured=True))["structured"] == {"complete": 2, "cut": 1, "forced_tokens": 0}


def test_what_sequence_groups_share_is_summed_over_engines() -> None:
    (engine,) = make_facts().engines
    groups = (GroupStats(3, 40, 6, 70, 100, 11), GroupStats(2, 10, 4, 30, 100, 12), GroupStats())
    report = build_report(make_facts(engines=tuple(replace(engine, groups=group) for group in groups)))
    assert report["sequence_groups"] == {
        "num_groups": 5,
        "blocks_shared": 50,
        "blocks_copied": 10,
        "most_blocks_saved": 12,
        "memory_saved": 0.5,
    }
    assert all("groups" not in worker for worker in report["workers"])


def test_what_memory_tiers_kept_is_summed_over_engines() -> None:
    (engine,) = make_facts().engines
    engine = replace(engine, num_preemptions=7, block_size=16)
    stats = (TierStats(10, 5, 8, 3, 30, 20, 6, 4, 2, 0, 5, 1e-3, 2e-4, 3e-4, 4e-4), TierStats(10, 0, 1, 0, 2, 1, 0, 0, 1, 1, 7, 2e-3, 2e-4, 3e-4, None))
    report = build_report(make_facts(engines=tuple(replace(engine, tiers=tiers) for tiers in (*stats, None))))
    assert report["memory_tiers"] == {
        "host": {"blocks": 20, "most_used": 9, "saved": 32},
        "disk": {"blocks": 5, "most_used": 3, "written": 6, "read": 4},
        "blocks_loaded": 21,
        "tokens_loaded": 336,
        "blocks_dropped": 3,
        "blocks_lost": 1,
        "preemptions": {"swapped": 12, "recomputed": 2},
        "seconds_per_block": {"compute": 0.032, "save": 2e-4, "load": 3e-4, "read": None},
    }
    line = (
        "32 blocks saved in host memory · 6 written to disk · 21 loaded again (336 tokens) · 12 of 14 preemptions swapped · "
        "the disk lost blocks, which were computed again"
    )
    assert fmt.memory_tiers(report["memory_tiers"], " · ") == line


def test_memory_tiers_of_stages_add_up_but_for_their_room() -> None:
    first = {
        "host": {"blocks": 20, "most_used": 9, "saved": 32},
        "disk": {"blocks": 5, "most_used": 3, "written": 6, "read": 4},
        "blocks_loaded": 21,
        "preemptions": {"swapped": 12, "recomputed": 2},
        "seconds_per_block": {"compute": 0.032, "read": None},
    }
    second = {
        "host": {"blocks": 20, "most_used": 11, "saved": 3},
        "disk": {"blocks": 5, "most_used": 0, "written": 0, "read": 1},
        "blocks_loaded": 2,
        "preemptions": {"swapped": 1, "recomputed": 0},
        "seconds_per_block": {"compute": 0.03, "read": None},
    }
    assert of_all_stages([None, first, second]) == {
        "host": {"blocks": 20, "most_used": 11, "saved": 35},
        "disk": {"blocks": 5, "most_used": 3, "written": 6, "read": 5},
        "blocks_loaded": 23,
        "preemptions": {"swapped": 13, "recomputed": 2},
        "seconds_per_block": {"compute": 0.03, "read": None},
    }
    assert of_all_stages([None, None]) is None


def test_lists_of_completions_count_one_by_one() -> None:
    types = {"finish_reason": pa.string(), "completion_tokens": pa.int32()}
    fields = [f.with_type(pa.list_(types[f.name])) if f.name in types else f for f in ROWS_SCHEMA]
    rows = [
        ("a", "ok", None, ["stop", "length"], 10, 4, [2, 5]),
        ("b", "ok", None, ["stop", "stop"], 20, 0, [1, 1]),
        ("c", "failed", "no", None, None, None, None),
    ]
    table = pa.Table.from_pylist([dict(zip(ROWS_SCHEMA.names, row, strict=True)) for row in rows], pa.schema(fields))
    report = build_report(make_facts(rows=table))
    assert report["tokens"]["completion"] == 9 and report["tokens"]["prompt"] == 30
    assert report["finish_reasons"] == {"stop": 3, "length": 1}
    assert count_lengths(table, "completion_tokens").counts.tolist() == [0, 2, 1, 0, 0, 1]


def test_gates_over_a_part_of_the_input_say_so() -> None:
    report = build_report(make_facts(gates=("failed_rows <= 0",), num_rows_left_out=21))
    assert report["limit"] == report["gates"][0]["limit"] == {"rows": 4, "of": 25}
    whole = build_report(make_facts(gates=("failed_rows <= 0",)))
    assert whole["limit"] is None and "limit" not in whole["gates"][0]


def test_with_one_worker_nothing_is_cut_between_workers() -> None:
    one, two = (tuple(replace(make_facts().engines[0], worker=name) for name in names) for names in ("aa", "ab"))
    assert ("cut by an interruption", 8) in computed_again(build_report(make_facts(engines=one)))
    assert ("cut between workers", 8) in computed_again(build_report(make_facts(engines=two)))


@pytest.mark.parametrize(
    ("rows", "gates", "verdict"),
    [
        ("of", (), "all 2 rows failed"),
        ("ko", ("failed_rows <= 0", "rows.total > 0"), "1 of 2 rows failed, 1 of 2 gates failed"),
        ("kk", ("failed_rows <= 0",), None),
    ],
)
def test_what_went_wrong_is_said_in_a_few_words(rows: str, gates: tuple[str, ...], verdict: str | None) -> None:
    made = [
        (str(i), *(("ok", None, "stop", 9, 0, 1) if kind == "k" else ("failed", "x", None, None, None, None)))
        for i, kind in enumerate(rows)
    ]
    assert describe_verdict(build_report(make_facts(rows=make_rows(made), gates=gates))) == verdict
