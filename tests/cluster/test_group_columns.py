"""Rows with several completions: list columns, resume, evaluation, and the report."""

import pyarrow as pa
import pytest
import tiny_runs

from batchpaged import api
from batchpaged.errors import ConfigError

LISTS = ["completion", "finish_reason", "completion_tokens"]


def pipeline(sampling: dict, **engine: object) -> dict:
    engine = {"kv_cache": 300, "max_sequences": 16, "max_batch_tokens": 256, "device": "cpu", **engine}
    return tiny_runs.pipeline(tiny_runs.new_path("groups"), sampling=sampling, engine=engine, gates=[])


def rows(run: api.RunResult) -> list[dict]:
    return tiny_runs.output(run.run_dir, ["id", "status", "prompt_tokens", "cached_tokens", *LISTS]).to_pylist()


def test_samples_come_as_lists_and_survive_an_interruption() -> None:
    made = pipeline({"max_tokens": 6, "n": 3, "temperature": 1.0, "logprobs": 1})
    run = api.run(made)
    table = tiny_runs.output(run.run_dir)
    assert [table.schema.field(name).type for name in LISTS[:2]] == [pa.list_(pa.string())] * 2
    before = rows(run)
    for row in before:
        if row["status"] == "failed":
            assert row["completion"] is None
        else:
            assert [len(row[name]) for name in LISTS] == [3] * 3
    good = [row for row in before if row["status"] != "failed"]
    report = run.report
    assert report["tokens"]["completion"] == sum(sum(row["completion_tokens"]) for row in good)
    assert report["tokens"]["prompt"] == sum(row["prompt_tokens"] for row in good)
    assert sum(report["finish_reasons"].values()) == 3 * len(good)
    groups = report["sequence_groups"]
    assert groups["num_groups"] == len(good) and groups["blocks_copied"] > 0
    assert 0.3 < groups["memory_saved"] < 0.67
    plain = api.run(pipeline({"max_tokens": 6, "temperature": 1.0}))
    assert plain.report["prefix_cache_hit_rate"] == report["prefix_cache_hit_rate"]
    assert plain.report["sequence_groups"] is None
    assert [r["completion"] and r["completion"][0] for r in before] == [r["completion"] for r in rows(plain)]
    for path in (run.run_dir / "report.json", *sorted((run.run_dir / "units").glob("unit-*.parquet"))[:2]):
        path.unlink()
    assert rows(api.run(made)) == before
    assert not api.compare(run.run_dir, run.run_dir, with_text=True).has_changes


def test_beams_have_scores_and_equal_rows_are_computed_once() -> None:
    run = api.run(pipeline({"max_tokens": 5, "beam_width": 3, "n": 2}))
    table = tiny_runs.output(run.run_dir, ["status", "completion", "completion_score"])
    assert table.schema.field("completion_score").type == pa.list_(pa.float32())
    for row in table.to_pylist():
        if row["status"] != "failed":
            assert row["completion_score"] == sorted(row["completion_score"], reverse=True)
    assert run.report["rows"]["deduplicated"] == 1


REFUSED = [
    ({"n": 3, "best_of": 2, "temperature": 1.0}, "sampling.best_of: must be at least sampling.n = 3"),
    ({"best_of": 2}, "sampling.best_of: needs sampling.temperature above 0"),
    ({"best_of": 2, "beam_width": 2}, "sampling.best_of: cannot be with sampling.beam_width"),
    ({"beam_width": 2, "n": 3}, "sampling.beam_width: must be at least sampling.n = 3"),
    ({"beam_width": 2, "temperature": 0.5}, "sampling.beam_width: needs sampling.temperature 0"),
    ({"beam_width": 2, "repetition_penalty": 1.1}, "sampling.beam_width: cannot be with sampling.repetition_penalty"),
    ({"beam_width": 2, "structured": {"choices": ["a"]}}, "sampling.beam_width: cannot be with sampling.structured"),
    ({"length_penalty": 2.0}, "sampling.length_penalty: goes with sampling.beam_width only"),
    ({"early_stopping": True}, "sampling.early_stopping: goes with sampling.beam_width only"),
    ({"n": 17, "temperature": 1.0}, "engine.max_sequences: must be at least 17"),
]


@pytest.mark.parametrize(("sampling", "message"), REFUSED)
def test_what_makes_no_sense_is_refused(sampling: dict, message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        api.validate(pipeline({"max_tokens": 6, **sampling}))
    assert message.partition(":")[0] in str(refusal.value) and message.partition(": ")[2] in str(refusal.value)


def test_memory_tiers_are_reported_and_change_no_completion() -> None:
    """Few blocks, and more sequences than fit: some are preempted. Who shares a batch must not matter for sampled tokens."""
    sampling = {"max_tokens": 16, "n": 4, "temperature": 1.0, "ignore_eos": True}
    few = {"kv_cache": 40, "batch_invariant": True}
    plain = api.run(pipeline(sampling, **few))
    run = api.run(pipeline(sampling, **few, host_cache=20, disk_cache=60))
    assert plain.report["memory_tiers"] is None and plain.report["num_preemption"] > 0
    tiers = run.report["memory_tiers"]
    assert (tiers["host"]["blocks"], tiers["disk"]["blocks"]) == (20, 60)
    assert sum(tiers["preemptions"].values()) == run.report["num_preemption"] > 0
    columns = ["id", "completion", "finish_reason", "prompt_tokens"]
    assert tiny_runs.output(run.run_dir, columns).equals(tiny_runs.output(plain.run_dir, columns))
