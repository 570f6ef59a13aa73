"""The lines of `batchpaged size`, and its JSON."""

import json
from pathlib import Path

from click.testing import CliRunner

from batchpaged.cli import cli
from batchpaged.sizing.size import size_model
from batchpaged.sizing.text import size_facts

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "docs" / "examples" / "configs"


def size(name: str, *options: str) -> str:
    result = CliRunner().invoke(cli, ["size", str(CONFIGS / f"{name}.json"), *options])
    assert result.exit_code == 0, result.output
    return result.output


def test_the_page_shows_what_is_printed() -> None:
    printed = size("llama-3-8b", "--gpu-memory", "80GiB", "--seq-len", "8192")
    assert printed in (ROOT / "docs" / "sizing.md").read_text("utf-8")


def test_what_does_not_fit_and_what_is_too_long_is_said() -> None:
    printed = size("llama-2-70b", "--gpu-memory", "80GiB", "--seq-len", "8192")
    assert "none: weights, a step and one block need 57.5 GiB more" in printed
    assert "this model has 4,096 positions" in printed
    assert "a GPU of 143.9 GiB or more, or a smaller model; a model is not" in printed
    assert "--dtype bfloat16" in size("llama-2-70b", "--gpu-memory", "80GiB", "--dtype", "float32")


def test_a_gpu_that_lacks_one_block_is_told_so() -> None:
    exact = size_model(CONFIGS / "llama-3-8b.json", gpu_memory=2**40)
    memory = exact.weights + exact.fit.step
    facts = dict(size_facts(size_model(CONFIGS / "llama-3-8b.json", gpu_memory=memory, gpu_memory_fraction=1.0)))
    assert facts["KV cache"] == "none: weights, a step and one block need 2.0 MiB more than there are"


def test_windows_are_said_with_what_they_would_save() -> None:
    line = "21 layers of 4,096 tokens; but all tokens are kept; only those in the window would be 2.0 GiB"
    assert line in size("gemma-2-9b", "--seq-len", "8192")
    assert "a sequence is no longer than that" in size("gemma-2-9b", "--seq-len", "100")


def test_json_has_the_figures_as_they_are() -> None:
    figures = json.loads(size("llama-3-70b", "--json", "--gpu-memory", "192GiB", "--kv-dtype", "fp8"))
    assert figures["kv_bytes_per_token"] == 168_960
    assert figures["fit"]["sequences"] == 125
    assert json.loads(size("llama-3-8b", "--json"))["fit"] is None


def test_a_size_without_a_unit_is_refused() -> None:
    result = CliRunner().invoke(cli, ["size", "x", "--gpu-memory", "80"])
    assert result.exit_code == 2
    assert "must be a size with a unit" in result.output
