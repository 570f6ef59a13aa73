"""The lines that commands print."""

from types import SimpleNamespace

import pytest

from batchpaged.cli.text import architecture_lines, model_lines, plan_lines, status_lines, validation_lines
from batchpaged.planning.diagnosis.findings import Diagnosis, Finding


@pytest.fixture
def plan():
    summary = SimpleNamespace(
        num_rows=1219,
        num_failed=12,
        num_truncated=3,
        num_prompt_tokens=110419,
        num_unique_tokens=11218,
        hit_rate_ceiling=0.8984,
        num_duplicates=7,
        num_prefix_groups=48,
        longest_prompt=812,
        longest_row_id="q-17",
        num_units=4,
    )
    return SimpleNamespace(
        summary=summary,
        failed_rows=(("q-3", "prompt of 5,000 tokens is too long"), ("q-9", "question is null")),
        num_failed_rows=12,
        kv_bytes_needed=3 << 30,
        kv_bytes_available=2 << 30,
        estimated_seconds=192.0,
        estimate_note="at the speed of this CPU",
        simulation=None,
        diagnosis=Diagnosis((), 1219, 1219, None, None),
    )


@pytest.fixture
def status():
    return SimpleNamespace(
        name="rag",
        run_id="r1",
        state="interrupted",
        num_units=4,
        num_units_done=1,
        num_rows=200,
        num_rows_done=50,
        started_at="2026-03-01T02:15:00Z",
        updated_at=None,
        owner=None,
        verdict=None,
        stages=(),
    )


def test_a_plan_says_what_the_run_would_take(plan):
    assert plan_lines(plan) == [
        "Rows              1,219, 7 with a prompt another row has too, 3 truncated, 12 will fail",
        "Prompt tokens     110,419",
        "Unique tokens     11,218, which have to be computed",
        "Hit rate ceiling  89.8% of prompt tokens can come from the cache",
        "Prefix groups     48",
        "Longest prompt    812 tokens, row q-17",
        "Units             4",
        "KV memory         3.0 GiB needed, 2.0 GiB available; sequences will wait for blocks",
        "Estimated time    3 min 12 s of inference (at the speed of this CPU), and some seconds to start and to end",
        "",
        "12 rows will fail:",
        "  q-3: prompt of 5,000 tokens is too long",
        "  q-9: question is null",
        "  and 10 more",
    ]


def test_a_plan_in_which_nothing_fails_lists_no_rows(plan):
    plan.num_failed_rows, plan.failed_rows, plan.summary.num_truncated = 0, (), 0
    plan.kv_bytes_needed = 5
    lines = plan_lines(plan)
    assert lines[0] == "Rows              1,219, 7 with a prompt another row has too"
    assert lines[7] == "KV memory         5 B needed, 2.0 GiB available"
    assert len(lines) == 9


def test_what_a_plan_does_not_know_is_a_dash(plan):
    plan.summary.hit_rate_ceiling = plan.summary.longest_row_id = None
    plan.kv_bytes_available = plan.estimated_seconds = plan.estimate_note = None
    values = [line.rpartition("  ")[2].strip() for line in plan_lines(plan)]
    assert values[3:9] == ["–", "48", "–", "4", "–", "–"]


def test_an_estimate_of_next_to_nothing_is_not_given_to_the_hundredth(plan):
    plan.estimated_seconds = 0.02
    assert "Estimated time    under a second of inference (" in "\n".join(plan_lines(plan))


@pytest.mark.parametrize(
    ("gates", "text"), [((), "none"), (("f1 > 0.5", "failed_rows <= 0"), "f1 > 0.5, failed_rows <= 0")]
)
def test_a_validation_says_what_was_found(gates, text):
    output = SimpleNamespace(path="runs/x")
    pipeline = SimpleNamespace(name="rag", model=SimpleNamespace(id="m"), gates=gates, output=output)
    found = SimpleNamespace(pipeline=pipeline, num_rows=150, num_files=1, model_path="/models/m")
    assert validation_lines("rag.yaml", found) == [
        "rag.yaml is valid",
        "",
        "Pipeline       rag",
        "Input          150 rows in 1 file",
        "Model          m, in /models/m",
        f"Gates          {text}",
        "Run directory  runs/x",
        "",
        "No row was looked at: `batchpaged plan rag.yaml` tokenises all of them, and says which will fail and why.",
    ]


def test_a_status_says_how_far_the_run_is(status):
    assert status_lines(status) == [
        "Run            rag  r1",
        "State          interrupted: finished units are kept; the same `batchpaged run` goes on",
        "Units          1 of 4 done (25.0%)",
        "Rows           50 of 200 done (25.0%)",
        "Started        2026-03-01 02:15 UTC",
        "Last progress  –",
        "Owner          none",
    ]


def test_a_run_without_a_finished_unit_keeps_none(status):
    status.num_units_done = 0
    assert status_lines(status)[1] == "State          interrupted: the same `batchpaged run` goes on"


@pytest.mark.parametrize("state", ["running", "interrupted", "done", "not planned"])
def test_each_state_is_explained(status, state):
    status.state = state
    assert f"{state}: " in status_lines(status)[1]


def test_a_run_that_is_done_but_not_well_says_so(status):
    status.state, status.verdict = "done", "all 12 rows failed"
    assert status_lines(status)[1].endswith("done: all 12 rows failed")


def test_before_the_plan_there_are_no_shares(status):
    status.state, status.num_units, status.num_rows = "not planned", None, None
    status.num_units_done = status.num_rows_done = 0
    assert status_lines(status)[2:4] == ["Units          –", "Rows           –"]


def test_models_stand_in_columns():
    here = SimpleNamespace(alias="small", location="/models/small", size_bytes=538 << 20, note="English")
    away = SimpleNamespace(alias="larger-one", location=None, size_bytes=None, note="98 MB to fetch")
    assert model_lines([here, away]) == [
        "ALIAS       SIZE       WHERE          NOTE",
        "small       538.0 MiB  /models/small  English",
        "larger-one  –          not here yet   98 MB to fetch",
    ]


def test_model_types_are_wrapped_and_stay_whole():
    names = [f"model-type-{i}" for i in range(30)]
    _, _, *lines = architecture_lines(names)
    assert ", ".join(line.strip().rstrip(",") for line in lines) == ", ".join(names)
    assert len(lines) > 1 and max(map(len, lines)) <= 98


def test_why_prefixes_miss_comes_before_the_rows_that_fail(plan):
    finding = Finding("context_order", "documents differ in order", "set prompt.reorder", 9, ("q-1", "q-2"), 5000, 0.94)
    plan.diagnosis = Diagnosis((finding,), 1219, 1219, 110419, 11218)
    lines = plan_lines(plan)
    cause = next(i for i, line in enumerate(lines) if "order of documents" in line)
    failing = next(i for i, line in enumerate(lines) if "will fail:" in line)
    assert lines[cause - 1] == "Why prefixes miss:" and cause < failing
