"""From units on disk to the facts of a report, over several sittings."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchpaged.config import parse_pipeline
from batchpaged.planning.summary import PlanSummary
from batchpaged.run.collect import Sitting, collect_facts
from batchpaged.run.directory import RunDirectory
from batchpaged.run.unit_file import result_row, write_unit

SUMMARY = PlanSummary(
    num_rows=4,
    num_failed=1,
    num_truncated=0,
    num_prompt_tokens=30,
    num_unique_tokens=20,
    num_duplicates=0,
    num_prefix_groups=1,
    longest_prompt=10,
    longest_row_id="0",
    num_units=4,
)
PIPELINE = parse_pipeline(
    {
        "input": {"path": "/data"},
        "prompt": {"user": "{{ q }}"},
        "model": {"id": "m"},
        "evaluate": {"references": "gold", "metrics": ["exact_match"]},
        "output": {"path": "runs/x"},
    }
)


REUSE = {
    "has_cache": True,
    "num_prefilled_tokens": 10,
    "num_unique_tokens": 4,
    "num_last_tokens": 1,
    "num_shared_tokens": 3,
}


def prompt(ordinal, token_ids=(1, 2)):
    status = {"status": "failed", "error": "null"} if token_ids is None else {"status": "ok", "error": None}
    return {"ordinal": ordinal, "row_id": f"r{ordinal}", "token_ids": token_ids and list(token_ids), **status}


def facts(sitting, session, started_at, finished_at, num_steps, load_seconds=2.0, samples=()):
    worker = session.split("@")[0]
    return {
        "sitting": sitting,
        "session": session,
        "worker": worker,
        "device": "cpu",
        "num_rows": 1,
        "load_seconds": load_seconds,
        "num_blocks": 10,
        "block_size": 16,
        "num_steps": num_steps,
        "busy_seconds": 1.0,
        "num_prefilled_tokens": 10 * num_steps,
        "num_cached_tokens": 0,
        "num_recomputed_tokens": 0,
        "num_completion_tokens": num_steps,
        "num_preemptions": 0,
        "num_deduplicated": num_steps,
        "reuse": REUSE,
        "started_at": started_at,
        "finished_at": finished_at,
        "timeline": [
            {
                "time": time,
                "worker": worker,
                "num_prefilled_tokens": 0,
                "num_cached_tokens": 0,
                "num_completion_tokens": 0,
                "cache_usage": 0.5,
                "num_running": 1,
                "num_waiting": 0,
                "num_preemptions": 0,
            }
            for time in samples
        ],
    }


@pytest.fixture
def directory(tmp_path):
    """Two sittings: the first was killed an hour before the second began; both had a worker 0."""
    directory = RunDirectory(tmp_path)
    with directory.lock():
        directory.open("x", {"pipeline": {}, "model": "m", "input": []}, fresh=False)
    units = [
        facts("first", "0@1", 1000.0, 1004.0, num_steps=3, samples=[1001.0, 1004.0]),
        facts("first", "0@1", 1002.0, 1010.0, num_steps=7, samples=[1010.0]),
        facts("second", "0@2", 5000.0, 5005.0, num_steps=2, load_seconds=3.0, samples=[5000.5]),
        {"sitting": "second", "num_rows": 1},
    ]
    prompts = [prompt(2), prompt(0), prompt(3), prompt(1, None)]
    for i, (unit, row) in enumerate(zip(units, prompts, strict=True)):
        write_unit(directory.unit_file(i), [result_row(row, None)], {**unit, "unit": i})
    Sitting({"read": 1.0, "plan": 2.0, "total": 20.0}).write(directory.sittings, "second")
    directory.output.mkdir()
    completions, gold = ["a", None, "b", "c"], ["a", "x", "x", "c"]
    rows = {"completion": completions, "gold": gold, "status": ["ok", "failed", "ok", "ok"]}
    pq.write_table(pa.table(rows), directory.output / "rows.parquet")
    (directory.output / "_SUCCESS").touch()
    return directory


@pytest.fixture
def collected(directory):
    return collect_facts(directory, PIPELINE, SUMMARY)


def test_rows_are_in_input_order(collected):
    assert collected.rows["row_id"].to_pylist() == ["r0", "r1", "r2", "r3"]
    assert collected.rows["status"].to_pylist() == ["ok", "failed", "ok", "ok"]


def test_an_engine_is_known_by_its_last_unit(collected):
    assert [(engine.worker, engine.num_steps) for engine in collected.engines] == [("0", 7), ("0", 2)]


def test_times_are_of_all_sittings_and_of_killed_ones_what_the_units_tell(collected):
    assert collected.times["infer"] == pytest.approx(10.0 + 5.0)
    assert collected.times["load"] == pytest.approx(2.0 + 3.0)
    assert (collected.times["read"], collected.times["plan"]) == (1.0, 2.0)
    assert collected.times["total"] == pytest.approx(20.0 + 10.0)


def test_sittings_follow_each_other_without_the_time_between(collected):
    samples = sorted(zip(collected.timeline["t"].to_pylist(), collected.timeline["worker"].to_pylist(), strict=True))
    assert samples == [(1.0, "0@1"), (4.0, "0@1"), (10.0, "0@1"), (10.5, "0@2")]


def test_the_run_is_described(collected, directory):
    info = directory.info()
    assert (collected.run_id, collected.name, collected.device) == (info["run_id"], "x", "cpu")
    assert collected.finished_at == directory.finished_at()
    assert collected.plan.num_unique_tokens == 20 and {"torch", "python"} <= collected.versions.keys()


def test_what_was_lost_is_summed_over_units(collected):
    """Of 5 tokens beyond the unique and last ones: 3 could not be shared with the engine of the unit before."""
    assert collected.num_deduplicated == 3 + 7 + 2
    assert collected.lost_tokens == {"evicted": 5 + 5 + 2, "cut_between_workers": 3, "last_token": 3, "cache_off": 0}


def test_the_output_is_evaluated_and_failed_rows_count_as_wrong(collected):
    assert collected.evaluation["exact_match"] == pytest.approx(0.5)


def test_a_run_of_failed_rows_alone_has_no_engine(directory):
    summary = PlanSummary(**{**vars(SUMMARY), "num_units": 1})
    for unit in range(4):
        directory.unit_file(unit).unlink()
    write_unit(directory.unit_file(0), [result_row(prompt(i, None), None) for i in range(4)], {"num_rows": 4})
    collected = collect_facts(directory, PIPELINE, summary)
    assert (collected.engines, collected.device, collected.timeline.num_rows) == ((), "none", 0)
    assert collected.times["infer"] == 0
    assert collected.num_deduplicated == sum(collected.lost_tokens.values()) == 0


def test_a_sitting_is_a_file_of_its_own(tmp_path):
    Sitting({"total": 1.5}).write(tmp_path, "abc")
    assert json.loads((tmp_path / "abc.json").read_text()) == {"total": 1.5}
