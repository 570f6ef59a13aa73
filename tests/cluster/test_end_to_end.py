"""A whole run over files with awkward columns and rows that cannot be computed."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiny_runs
import torch
from tiny_models import reference_generate, tiny_model, tiny_tokenizer

from batchpaged import api
from batchpaged.dataset.schema import OUTPUT_COLUMNS

REPORT = {
    "run": {"id", "name", "fingerprint", "model", "device", "versions", "started_at", "finished_at"},
    "rows": {"total", "succeeded", "failed", "truncated", "deduplicated"},
    "tokens": {"prompt", "unique", "prefilled", "cached", "recomputed", "completion"},
    "gpu_cache_usage_perc": {"mean", "peak"},
    "throughput": {"rows_per_s", "prompt_tokens_per_s", "prefilled_tokens_per_s", "completion_tokens_per_s"},
    "time": {"load", "read", "tokenize", "plan", "infer", "assemble", "total"},
}
FIGURES = {
    "prefix_cache_hit_rate",
    "prefix_cache_hit_rate_ceiling",
    "reuse_efficiency",
    "num_preemption",
    "avg_sequence_length",
    "max_model_len",
}
LISTS_AND_OPEN_OBJECTS = {"evaluation", "gates", "workers", "misses"}


@pytest.fixture(scope="module")
def run():
    return tiny_runs.finished_run()


@pytest.fixture(scope="module")
def rows(run):
    table = tiny_runs.output(run.run_dir, ["id", *OUTPUT_COLUMNS.names])
    return table.to_pylist()


def test_every_row_comes_out_once_in_input_order(rows):
    assert [row["id"] for row in rows] == [row["id"] for row in tiny_runs.rows()]


def test_output_files_are_the_input_files(run):
    files = {path.name: pq.read_metadata(path).num_rows for path in (run.run_dir / "output").glob("*.parquet")}
    assert files == tiny_runs.SHARDS
    assert (run.run_dir / "output" / "_SUCCESS").exists()


def test_input_columns_come_out_as_they_went_in(run):
    for name in tiny_runs.SHARDS:
        before, after = pq.read_table(tiny_runs.data() / name), pq.read_table(run.run_dir / "output" / name)
        assert after.column_names == [*before.column_names, *OUTPUT_COLUMNS.names]
        for column in before.column_names:
            untyped = column == "nothing"  # its type is that of the files where it has one
            assert untyped or after.schema.field(column).type == before.schema.field(column).type, (name, column)
            assert after[column].cast(before[column].type).equals(before[column]) if not untyped else True
        nulls = after["nothing"].null_count
        assert nulls == (after.num_rows if name == "b.parquet" else 0)


def test_output_columns_have_their_types(run):
    schema = pq.read_schema(run.run_dir / "output" / "b.parquet")
    assert schema.field("completion").type == schema.field("error").type == pa.string()
    assert [schema.field(field.name).type for field in OUTPUT_COLUMNS] == OUTPUT_COLUMNS.types


def test_a_row_that_cannot_be_computed_has_its_reason_and_nothing_else(rows):
    for ordinal, row in enumerate(rows):
        reason = tiny_runs.FAILED.get(ordinal)
        assert row["status"] == ("ok" if reason is None else "failed")
        assert (row["error"] is None) == (reason is None)
        if reason is not None:
            assert reason in row["error"]
            assert all(row[name] is None for name in OUTPUT_COLUMNS.names if name not in ("status", "error"))


def test_completions_are_those_of_transformers_generate(rows):
    """Token for token: the tokenizer has one token a byte."""
    model, tokenizer = tiny_model(), tiny_tokenizer()
    model.generation_config.eos_token_id = tokenizer.eos_token_id  # what the tokenizer of a saved model says
    for row, given in zip(rows, tiny_runs.rows(), strict=True):
        if row["status"] == "failed":
            continue
        user = given["document"] + "".join(f" {question}" for question in given["questions"])
        prompt = f"<bos>system: {tiny_runs.SYSTEM}<end>user: {user}<end>assistant: "
        token_ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        expected = reference_generate(model, token_ids, tiny_runs.MAX_TOKENS)
        is_stopped = expected[-1] == tokenizer.eos_token_id
        assert row["prompt_tokens"] == len(token_ids)
        assert row["completion_tokens"] == len(expected)
        assert row["finish_reason"] == ("stop" if is_stopped else "length")
        assert row["completion"] == tokenizer.decode(expected, skip_special_tokens=True)


def test_equal_prompts_have_equal_hashes_and_completions(rows):
    ran = [row for row in rows if row["status"] == "ok"]
    first, second = (rows[ordinal] for ordinal in tiny_runs.DUPLICATES)
    assert first["prompt_hash"] == second["prompt_hash"] and first["completion"] == second["completion"]
    assert len({row["prompt_hash"] for row in ran}) == len(ran) - 1
    assert all(len(row["prompt_hash"]) == 32 for row in ran)


def test_the_report_has_every_figure(run):
    report = json.loads((run.run_dir / "report.json").read_text())
    assert report == run.report
    assert REPORT.keys() | FIGURES | LISTS_AND_OPEN_OBJECTS <= report.keys()
    for section, keys in REPORT.items():
        assert keys <= report[section].keys()
        assert None not in report[section].values(), section
    assert None not in [report[figure] for figure in FIGURES]


def test_the_reports_counts_are_those_of_the_rows(run, rows):
    report, ran = run.report, [row for row in rows if row["status"] == "ok"]
    counts = report["rows"]
    assert (counts["total"], counts["failed"]) == (tiny_runs.NUM_ROWS, len(tiny_runs.FAILED))
    assert counts["succeeded"] == len(ran)
    tokens = report["tokens"]
    assert tokens["prompt"] == sum(row["prompt_tokens"] for row in ran) == tokens["cached"] + tokens["prefilled"]
    assert tokens["cached"] == sum(row["cached_tokens"] for row in ran)
    assert tokens["completion"] == sum(row["completion_tokens"] for row in ran)
    assert sum(worker["num_completion_tokens"] for worker in report["workers"]) == tokens["completion"]


def test_shuffled_input_is_reused_as_if_it_were_sorted(run):
    assert run.report["reuse_efficiency"] > 0.97
    assert run.report["prefix_cache_hit_rate"] <= run.report["prefix_cache_hit_rate_ceiling"]


def test_passed_gates_and_metrics_are_reported(run):
    assert run.exit_code == 0
    assert [gate["passed"] for gate in run.report["gates"]] == [True, True]
    assert run.report["evaluation"]["num_evaluated"] == tiny_runs.NUM_ROWS


def test_the_page_and_the_metrics_are_written(run):
    assert (run.run_dir / "report.html").read_text().startswith("<!doctype html>")
    assert "batchpaged_" in (run.run_dir / "metrics.prom").read_text()


def test_no_file_holds_a_prompt_where_none_belongs(run):
    for name in ("run.json", "plan.json", "report.json", "report.html", "metrics.prom"):
        assert "questions share this sentence" not in (run.run_dir / name).read_text()


def test_an_engine_is_freed_when_its_run_is_over(run):
    api.run(tiny_runs.pipeline(tiny_runs.new_path("next")))  # on the same worker, where the first run's engine was
    assert tiny_runs.on_workers(tiny_runs.count_engines) == [(0, 0)]


TOKEN_ROWS = [[1, 40, 41, 42, 43], None, [1, 40, 41, 42, 43, 44], [], [1, 999]]
MESSAGES = ['[{"role": "user", "content": "Hi"}]', "no JSON", None]


@pytest.mark.parametrize(
    ("prompt", "column", "reasons"),
    [
        ("token_ids_column", pa.array(TOKEN_ROWS, pa.list_(pa.int64())), [None, "null", None, "empty", "outside"]),
        ("messages_column", pa.array(MESSAGES), [None, "JSON", "null"]),
        ("text_column", pa.array(["Hi", " ", None]), [None, "empty", "null"]),
    ],
)
def test_every_kind_of_prompt(tmp_path: Path, prompt, column, reasons):
    pq.write_table(pa.table({"prompt": column}), tmp_path / "rows.parquet")
    sections = {"input": {"path": str(tmp_path / "rows.parquet")}, "prompt": {prompt: "prompt"}}
    sections |= {"evaluate": None, "gates": []}
    result = api.run(tiny_runs.pipeline(tmp_path / "run", **sections))
    rows = tiny_runs.output(result.run_dir).to_pylist()
    assert [row["prompt"] for row in rows] == column.to_pylist()
    for row, reason in zip(rows, reasons, strict=True):
        assert row["error"] is None if reason is None else reason in row["error"]
    if prompt == "token_ids_column":
        assert rows[0]["completion_tokens"] == len(_greedy(TOKEN_ROWS[0]))


@torch.inference_mode()
def _greedy(token_ids):
    model = tiny_model()
    model.generation_config.eos_token_id = tiny_tokenizer().eos_token_id
    return reference_generate(model, token_ids, tiny_runs.MAX_TOKENS)
