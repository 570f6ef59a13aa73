"""A whole run on Triton's kernels, which workers on a CPU interpret: TRITON_INTERPRET reaches them from tests/conftest.py."""

import pytest
import tiny_runs

from batchpaged import api

pytest.importorskip("triton")

NUM_ROWS = 4


def completions(attention: str) -> list[str]:
    """Of rows that share a document or the system text alone, in chunks: every kind of work item is met."""
    engine = {"kv_cache": 60, "max_batch_tokens": 128, "device": "cpu", "attention": attention}
    pipeline = tiny_runs.pipeline(
        tiny_runs.new_path(attention), engine=engine, gates=["failed_rows <= 0"], sampling={"max_tokens": 3, "ignore_eos": True}
    )
    result = api.run(pipeline, limit=NUM_ROWS)
    assert result.exit_code == 0 and result.report["prefix_cache_hit_rate"] > 0.3
    return tiny_runs.output(result.run_dir, ["completion"])["completion"].to_pylist()


def test_greedy_tokens_are_those_of_the_reference() -> None:
    found = completions("triton")
    assert len(set(found)) > 1
    assert found == completions("torch")
