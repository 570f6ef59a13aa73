"""All measurements, a table of them, and whether they reach their goals."""

import json
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
import triton

from batchpaged.gpu_check.attention_speed import AttentionSpeed, measure_attention
from batchpaged.gpu_check.ceilings import Ceilings, measure_ceilings
from batchpaged.gpu_check.job import JobResult, measure_job
from batchpaged.gpu_check.kernel_errors import kernel_errors
from batchpaged.gpu_check.sizes import Sizes


@dataclass(frozen=True)
class Line:
    """A row of the table."""

    what: str
    value: float | None
    unit: str
    goal: str = ""
    is_reached: bool | None = None  # None: nothing to reach


def gpu_check(sizes: Sizes, device: str, json_path: Path, say: Callable[[str], None]) -> bool:
    """Print the table last, write the figures to a JSON file -> whether all kernels are right."""
    say("kernels against their references")
    errors = list(kernel_errors(sizes, device))
    for name, error, tolerance in errors:
        if not error <= tolerance:  # NaN, too
            say(f"  WRONG {name}: error {error:.2e}, more than {tolerance:.0e}")
    say("the card's ceilings")
    ceilings = measure_ceilings(sizes, device)
    say("attention")
    attention = measure_attention(sizes, device)
    say("a whole job")
    job = measure_job(sizes, ceilings, device)
    for note in job.notes:
        say(f"  {note}")
    lines = [*_kernel_lines(errors), *_speed_lines(ceilings, attention), *_job_lines(job)]
    _write(json_path, device, errors, lines, job)
    say("")
    for text in _table(lines):
        say(text)
    return all(error <= tolerance for _, error, tolerance in errors)


def _kernel_lines(errors: list[tuple[str, float, float]]) -> Iterator[Line]:
    num_right = sum(error <= tolerance for _, error, tolerance in errors)
    yield Line("kernels right", num_right, f"of {len(errors)}", f"{len(errors)}", num_right == len(errors))


def _speed_lines(ceilings: Ceilings, attention: AttentionSpeed) -> Iterator[Line]:
    yield Line("matrix product", ceilings.flops / 1e12, "TFLOP/s")
    yield Line("batch-invariant product", ceilings.ordered_flops / 1e12, "TFLOP/s")
    yield Line("copy, read and written", ceilings.bytes / 1e9, "GB/s")
    for (count, context), rate in attention.decode.items():
        yield _at_least(f"decode {count} x {context}, of copy", rate / ceilings.bytes, "", 0.80)
    yield _at_least("causal prefill", attention.prefill / 1e12, "TFLOP/s", 350)
    yield _at_least("shared prefix against plain", attention.alone / attention.together, "x", 2.0)


def _job_lines(job: JobResult) -> Iterator[Line]:
    yield Line("job", job.rows_per_s, "rows/s")
    yield Line("prompt tokens computed more than once", job.num_prefilled_tokens - job.num_unique_tokens, "tokens", "0")
    yield _at_least("job, of its floor", job.floor_seconds / job.seconds, "", 0.55)
    for name, rate in job.peer_rows_per_s.items():
        goal = 3.0 if name == "generate_batch" else 1.0
        yield _at_least(f"against {name}", job.rows_per_s / rate, "x", goal) if rate else Line(f"against {name}", None, "x")
    if job.idle_share is not None:
        yield Line("device idle in decode", job.idle_share, "", "< 0.08", job.idle_share < 0.08)
    yield Line("processor per step", job.cpu_seconds_per_step * 1e3, "ms")


def _at_least(what: str, value: float, unit: str, goal: float) -> Line:
    return Line(what, value, unit, f">= {goal:g}", value >= goal)


def _table(lines: list[Line]) -> Iterator[str]:
    for line in lines:
        value = "-" if line.value is None else f"{line.value:.3g}" if line.value < 100 else f"{line.value:.0f}"
        mark = {None: "", True: "reached", False: "MISSED"}[line.is_reached]
        yield f"{line.what:40} {value:>8} {line.unit:8} {line.goal:8} {mark}".rstrip()


def _write(path: Path, device: str, errors: list[tuple[str, float, float]], lines: list[Line], job: JobResult) -> None:
    machine = {
        "device": "cpu" if device == "cpu" else torch.cuda.get_device_name(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "transformers": transformers.__version__,
    }
    figures = {
        "machine": machine,
        "lines": [vars(line) for line in lines],
        "job": vars(job),
        "kernel_errors": [dict(zip(("what", "error", "tolerance"), error, strict=True)) for error in errors],
    }
    path.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
