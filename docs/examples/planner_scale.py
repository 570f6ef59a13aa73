"""How the planner scales: time, memory and CPU of planning synthetic tokenised prompts.

    python planner_scale.py FOLDER 100000 1000000 10000000

For each number of rows: makes the data below FOLDER if it is not there, then plans it in a process of its own. Rows have a
system prompt that all share, a document drawn by a Zipf law, and a question of their own: 200 tokens on average.
FOLDER needs about 2.5 kB per row.
"""

import json
import math
import resource
import shutil
import subprocess
import sys
import time
from itertools import combinations
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from batchpaged.planning.cost import CostModel
from batchpaged.planning.plan_file import PROMPTS_SCHEMA
from batchpaged.planning.planner import PlanSettings, make_plan

PART_ROWS = 8192  # as a run writes them
NUM_DOCUMENTS = 200_000
VOCABULARY = 32_000
SYSTEM_TOKENS = 40
DOCUMENT_TOKENS = (60, 181)
QUESTION_TOKENS = (10, 71)
STAGES = ("sort_files", "order_partition", "write_partition")


def make_data(folder: Path, num_rows: int) -> list[Path]:
    """Tokenised parts, one after the other: memory is one part and the documents."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    lengths = rng.integers(*DOCUMENT_TOKENS, NUM_DOCUMENTS)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    tokens = rng.integers(0, VOCABULARY, SYSTEM_TOKENS + starts[-1], dtype=np.int32)
    system, documents = tokens[:SYSTEM_TOKENS], tokens[SYSTEM_TOKENS:]
    zipf = np.cumsum(1 / np.arange(1, NUM_DOCUMENTS + 1))
    files = []
    for first in range(0, num_rows, PART_ROWS):
        path = folder / f"part-{first // PART_ROWS:05}.parquet"
        if not path.exists():
            rng = np.random.default_rng([1, first])
            count = min(PART_ROWS, num_rows - first)
            chosen = np.searchsorted(zipf, rng.random(count) * zipf[-1])
            questions = (rng.integers(0, VOCABULARY, n, dtype=np.int32) for n in rng.integers(*QUESTION_TOKENS, count))
            prompts = [
                np.concatenate([system, documents[starts[d] : starts[d + 1]], question])
                for d, question in zip(chosen, questions, strict=True)
            ]
            pq.write_table(as_table(prompts, first), path, compression="zstd")
        files.append(path)
    return files


def as_table(prompts: list[np.ndarray], first: int) -> pa.Table:
    offsets = np.concatenate([[0], np.cumsum([len(prompt) for prompt in prompts])]).astype(np.int32)
    ordinals = pa.array(np.arange(first, first + len(prompts)))
    columns = {
        "ordinal": ordinals,
        "row_id": ordinals.cast(pa.string()),
        "token_ids": pa.ListArray.from_arrays(offsets, np.concatenate(prompts)),
        "num_truncated": pa.array(np.zeros(len(prompts), np.int32)),
        "status": pa.array(["ok"] * len(prompts)),
    }
    nothing = {field.name: pa.nulls(len(prompts), field.type) for field in PROMPTS_SCHEMA if field.name not in columns}
    return pa.table(columns | nothing, schema=PROMPTS_SCHEMA)


def read_all(files: list[Path]) -> None:
    """What counts as reading: the files decoded into Arrow batches, and nothing done with them."""
    for path in files:
        with pq.ParquetFile(path) as file:
            for _ in file.iter_batches(PART_ROWS, columns=PROMPTS_SCHEMA.names):
                pass


def start_libraries() -> None:
    """pyarrow imports pandas, where it is installed, for the first array that it makes, whatever that is for."""
    pa.array(np.zeros(1))


def cpu_seconds(function, *arguments) -> float:
    started = time.process_time()
    function(*arguments)
    return time.process_time() - started


class Stages:
    """CPU seconds of each stage, all threads, the system's share too."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def each(self, function, items):
        started = time.process_time()
        results = [function(*item) for item in items]
        self.seconds[function.__name__] = time.process_time() - started
        return results


def measure(folder: Path) -> dict[str, float]:
    """Plan the parts in `folder`, in this process."""
    files = sorted((folder / "data").glob("part-*.parquet"))
    for name in ("work", "run"):
        shutil.rmtree(folder / name, ignore_errors=True)
        (folder / name).mkdir()
    start_cpu = cpu_seconds(start_libraries)
    read_cpu = cpu_seconds(read_all, files)
    stages = Stages()
    wall, started = time.perf_counter(), time.process_time()
    settings = PlanSettings(CostModel(num_decode_tokens=16, is_greedy=True), num_workers=64)
    summary = make_plan(files, folder / "work", folder / "run", settings, stages.each)
    cpu = time.process_time() - started
    size = sum(path.stat().st_size for path in (folder / "run").rglob("*") if path.is_file())
    for name in ("work", "run"):
        shutil.rmtree(folder / name)
    return {
        "rows": summary.num_rows,
        "tokens": summary.num_prompt_tokens,
        "unique": summary.num_unique_tokens,
        "units": summary.num_units,
        "wall": time.perf_counter() - wall,
        "start": start_cpu,
        "read": read_cpu,
        "write": stages.seconds["write_partition"],
        "plan": cpu - read_cpu - stages.seconds["write_partition"],
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "disk": size,
        **stages.seconds,
    }


def main(folder: Path, sizes: list[int]) -> None:
    print(f"{'rows':>10} {'tokens':>14} {'unique':>14} {'units':>7} {'wall s':>7}   CPU us/row: read  plan write | plan+write"
          f"   peak RSS  bytes/row of plan")  # fmt: skip
    measured = []
    for num_rows in sizes:
        place = folder / str(num_rows)
        make_data(place / "data", num_rows)
        command = [sys.executable, __file__, "--measure", str(place)]
        facts = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
        measured.append(facts)
        read, plan, write = (facts[key] / num_rows * 1e6 for key in ("read", "plan", "write"))
        print(f"{num_rows:>10} {facts['tokens']:>14} {facts['unique']:>14} {facts['units']:>7} {facts['wall']:>7.1f}"
              f"               {read:>5.2f} {plan:>5.2f} {write:>5.2f} | {plan + write:>10.2f}   {facts['peak'] / 2**30:>5.2f} GiB"
              f"  {facts['disk'] / num_rows:>17.0f}", flush=True)  # fmt: skip
        stages = ", ".join(f"{name} {facts[name] / num_rows * 1e6:.2f}" for name in STAGES)
        print(f"{'':>10} CPU us/row of the stages, with what they read: {stages}", flush=True)
        print(f"{'':>10} CPU seconds of imports before that: {facts['start']:.2f}", flush=True)
    for a, b in combinations(measured, 2):
        print(f"CPU time grows with rows to the power {exponent(a, b):.3f} from {a['rows']} to {b['rows']} rows")


def exponent(a: dict[str, float], b: dict[str, float]) -> float:
    cpu = [facts["read"] + facts["plan"] + facts["write"] for facts in (a, b)]
    return math.log(cpu[1] / cpu[0]) / math.log(b["rows"] / a["rows"])


if __name__ == "__main__":
    if sys.argv[1] == "--measure":
        print(json.dumps(measure(Path(sys.argv[2]))))
    else:
        main(Path(sys.argv[1]), [int(size) for size in sys.argv[2:]])
