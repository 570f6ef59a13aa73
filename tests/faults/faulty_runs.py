"""A small run whose processes can be made to fail, and what its output holds."""

import json
import os
import random
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from faults.points import TARGETS, Fault

NUM_ROWS = 96
MAX_TOKENS = 6
INJECTION = Path(__file__).parent / "injection"
VARIABLE = "BATCHPAGED_TESTS_FAULT"
FILES = {"a.parquet": 40, "b.parquet": 56}  # rows
FAILED = (11, 70)


def make_pipeline(folder: Path, model: Path) -> dict:
    """Writes the input; -> the pipeline file's content. Rows share documents, two fail, two are equal."""
    contexts = [f"Document {i} says {i * i}." for i in range(8)]
    chooser = random.Random(3)
    rows = [
        {"id": f"r{i}", "contexts": chooser.sample(contexts[i % 2 * 4 :][:4], 3), "question": f"Why {i % 90}?"}
        for i in range(NUM_ROWS)
    ]
    for i in FAILED:
        rows[i]["question"] = None
    first = 0
    for name, num_rows in FILES.items():
        pq.write_table(pa.Table.from_pylist(rows[first : first + num_rows]), folder / name, row_group_size=20)
        first += num_rows
    return {
        "name": "faults",
        "input": {"path": str(folder / "*.parquet"), "id_column": "id"},
        "prompt": {"user": "{{ contexts | join(' ') }} {{ question }}", "reorder": "contexts"},
        "model": {"id": str(model), "max_model_len": 160},
        # Some sequences at a time, so that there are steps enough to be killed in. Bits, so that equal means equal.
        "engine": {"kv_cache": 120, "max_sequences": 6, "max_batch_tokens": 128, "device": "cpu", "batch_invariant": True},
        "sampling": {"max_tokens": MAX_TOKENS, "ignore_eos": True},
        "output": {"path": "run"},
    }


@dataclass(frozen=True)
class Sitting:
    exit_code: int  # negative: the signal that ended it
    text: str  # stdout and stderr
    is_reached: bool  # the fault has happened
    counts: dict[str, int]  # calls of each point


class Starter:
    """A process with the modules of the command line, in which the functions of points.py are wrapped.

    Each sitting is forked from it, in a session of its own: what would take seconds for every one is done once.
    """

    def __enter__(self) -> "Starter":
        paths = filter(None, [str(INJECTION), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), VARIABLE: settings(None, None, None)}
        command = [sys.executable, str(INJECTION.parent / "starter.py")]
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stdin.close()
        self._process.wait()

    def run(self, folder: Path, value: str) -> int:
        """`batchpaged run pipeline.yaml` in this folder, its output in output.txt. -> exit code, negative for a signal"""
        self._process.stdin.write(json.dumps([str(folder), value]) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


def settings(counts: Path | None, run_dir: Path | None, fault: Fault | None) -> str:
    """Of injection/sitecustomize.py."""
    paths = {"counts": counts and str(counts), "run_dir": run_dir and str(run_dir)}
    return json.dumps({**paths, "targets": TARGETS, "fault": fault and asdict(fault)})


class FaultyRun:
    """One run directory, and as many sittings as it takes."""

    def __init__(self, folder: Path, pipeline: dict, starter: Starter) -> None:
        self.folder, self.run_dir, self.starter = folder, folder / "run", starter
        folder.mkdir(parents=True)
        (folder / "pipeline.yaml").write_text(yaml.safe_dump(pipeline))
        self._num_sittings = 0

    def sit(self, fault: Fault | None = None) -> Sitting:
        self._num_sittings += 1
        counts = self.folder / f"counts-{self._num_sittings}"
        counts.mkdir()
        exit_code = self.starter.run(self.folder, settings(counts, self.run_dir, fault))
        calls = {path.name: path.stat().st_size for path in counts.iterdir() if path.name != "reached"}
        return Sitting(exit_code, (self.folder / "output.txt").read_text(), (counts / "reached").exists(), calls)

    def content(self) -> dict[str, pa.Table]:
        """All output files, without what depends on the cache."""
        files = sorted((self.run_dir / "output").glob("*.parquet"))
        return {path.name: pq.read_table(path).drop(["cached_tokens"]) for path in files}

    def unit_times(self) -> dict[str, int]:
        return {path.name: path.stat().st_mtime_ns for path in (self.run_dir / "units").glob("unit-*.parquet")}

    def leftovers(self) -> list[str]:
        """Temporary files that the run has left."""
        return [str(path.relative_to(self.run_dir)) for path in self.run_dir.rglob(".*")]

