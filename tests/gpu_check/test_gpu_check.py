"""The check for machines with a GPU, at tiny sizes in Triton's interpreter."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from batchpaged.gpu_check.ceilings import Ceilings
from batchpaged.gpu_check.job import floor_seconds, idle_share, job_prompts
from batchpaged.gpu_check.sizes import FULL, TINY, JobShape, ModelShape

# What machines with a GPU may lack: everything that reads pipelines and data sets.
ABSENT = ("dask", "distributed", "datasets", "pyarrow", "pydantic", "duckdb", "pandas")
SCRIPT = f"""
import sys
for name in {ABSENT}:
    sys.modules[name] = None
from batchpaged.cli import main
sys.argv = ["batchpaged", "bench", "--gpu-check", "--json", sys.argv[1]]
main()
"""


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess, dict]:
    path = tmp_path_factory.mktemp("gpu") / "figures.json"
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", SCRIPT, path], env=environment, capture_output=True, text=True)
    return done, json.loads(path.read_text()) if path.exists() else {}


def test_it_runs_without_what_reads_data_sets(checked) -> None:
    done, figures = checked
    assert done.returncode == 0, done.stderr
    assert figures["machine"]["torch"] == torch.__version__


def test_every_kernel_is_checked_and_right(checked) -> None:
    errors = checked[1]["kernel_errors"]
    kinds = {error["what"].split(":")[0] for error in errors}
    assert kinds == {"norms", "gates", "linears", "stores", "rotations", "copies", "merges", "samples", "attentions"}
    assert all(error["error"] <= error["tolerance"] for error in errors)


def test_the_table_comes_last_and_has_every_goal(checked) -> None:
    done, figures = checked
    shown = done.stdout.splitlines()[-len(figures["lines"]) :]
    assert [line[:40].strip() for line in shown] == [line["what"] for line in figures["lines"]]
    assert {line["goal"] for line in figures["lines"]} >= {">= 0.8", ">= 350", ">= 2", ">= 0.55"}


def test_the_job_is_computed_without_computing_twice(checked) -> None:
    job = checked[1]["job"]
    assert job["num_prefilled_tokens"] == job["num_unique_tokens"]
    assert job["notes"] == []
    assert job["peer_rows_per_s"]["generate"] > 0


def test_a_wrong_kernel_is_named_and_ends_with_1() -> None:
    code = (
        "import torch, sys, batchpaged.kernels.triton.rms_norm.launch as launch; right = launch.rms_norm\n"
        "launch.rms_norm = lambda x, *rest: tuple(y * torch.nan for y in right(x, *rest))\n"
        "import batchpaged.gpu_check.kernel_errors as errors; from batchpaged.gpu_check import sizes\n"
        "found = [e for e in errors._norms(sizes.TINY, 'cpu')]\n"
        "sys.exit(sum(not error <= tolerance for _, error, tolerance in found))"
    )
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | {"TRITON_INTERPRET": "1"})
    assert done.returncode == 3  # all three sizes


def test_without_a_gpu_it_says_so() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    code = "import sys; sys.argv[1:] = ['bench', '--gpu-check']; from batchpaged.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert done.returncode == 2 and "--gpu-check needs a GPU" in done.stderr


def test_the_floor_of_a_job_by_hand() -> None:
    """1 layer of 2 values: products are 2 x (8 + 12) weights a token, attention 8 FLOP a query and key."""
    shape = ModelShape(1, 2, 2, 1, 1, 3)
    job = JobShape(1, 2, 1, 2, 1, 1, 8, 2, 1)
    weights, head, unique = 2 * (2 * 2 + 2 * 2 + 3 * 2), 2 * 3, 1 + 2 + 2
    prefill = 2 * weights * unique + 8 * (9 / 2 + 2 * 3.5)
    step = 2 * (2 * (weights + head) + 8 * 4.5)
    assert floor_seconds(shape, job, torch.float32, Ceilings(1.0, 1e9, 1.0)) == pytest.approx(prefill + step)
    step_bytes = 4 * (weights + head + 2 * 2 * (unique + 1))
    assert floor_seconds(shape, job, torch.float32, Ceilings(1e9, 1.0, 1.0)) == pytest.approx(step_bytes, rel=1e-5)


def test_rows_of_a_document_follow_each_other_and_share_it() -> None:
    job = TINY.job
    prompts = job_prompts(job, 64)
    assert len(prompts) == job.num_rows and {len(prompt) for prompt in prompts} == {job.prompt_tokens}
    prefixes = [tuple(prompt[: job.system_tokens + job.document_tokens]) for prompt in prompts]
    assert [prefixes.count(prefix) for prefix in prefixes] == [job.num_questions] * job.num_rows
    assert prefixes == sorted(prefixes)


def test_idle_is_what_no_span_covers() -> None:
    assert idle_share([(0, 2), (1, 3), (1, 2), (6, 10)]) == pytest.approx(0.3)


def test_a_full_job_fits_into_a_card_of_80_gib() -> None:
    shape, job = FULL.model, FULL.job
    tokens = job.num_documents * (job.system_tokens + job.document_tokens)
    tokens += job.num_rows * (job.question_tokens + job.completion_tokens + 32)
    kv = 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * 2 * tokens
    assert kv + 16.1e9 < 70 * 2**30
