"""A run that is interrupted and killed in every way, each time in the middle of inference, and comes to its end.

The sittings of one run follow each other in `story`; the tests look at what each has left behind.
"""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiny_runs
import yaml

from batchpaged import api

NUM_ROWS = 240  # units enough for five sittings, each of which finishes some, on a fast machine too
MAIN = [sys.executable, "-c", "from batchpaged.cli import main; main()"]
PATIENCE = 120  # seconds, on a machine that is busy with other things


@dataclass(frozen=True)
class Sitting:
    exit_code: int  # negative: the signal that ended it
    stderr: str
    units: dict[str, tuple[int, int]]  # what was finished when it had ended: inode and time of each file
    num_left_alive: int  # processes that it started and that stayed


class Run:
    def __init__(self, folder: Path, pipeline: dict) -> None:
        self.folder, self.run_dir = folder, folder / "run"
        (folder / "pipeline.yaml").write_text(yaml.safe_dump(pipeline))
        self.process: subprocess.Popen | None = None
        self.addresses: set[str] = set()  # on which its processes listen

    def start(self) -> "Run":
        self.stderr = (self.folder / "stderr.txt").open("w")
        command = [*MAIN, "run", "pipeline.yaml"]
        self.process = subprocess.Popen(
            command, cwd=self.folder, stdout=self.stderr, stderr=self.stderr, start_new_session=True
        )
        return self

    def wait_for_units(self, num_more: int) -> "Run":
        wanted = len(self.units()) + num_more
        self._wait(lambda: len(self.units()) >= wanted)
        self.children = psutil.Process(self.process.pid).children(recursive=True)
        self.addresses |= {
            connection.laddr.ip
            for process in (psutil.Process(self.process.pid), *self.children)
            for connection in process.net_connections("inet")
            if connection.status == psutil.CONN_LISTEN
        }
        return self

    def wait_for_text(self, text: str) -> None:
        self._wait(lambda: text in (self.folder / "stderr.txt").read_text())

    def units(self) -> dict[str, tuple[int, int]]:
        files = sorted((self.run_dir / "units").glob("unit-*.parquet"))
        return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}

    def kill_worker(self) -> None:
        [worker] = [child for child in self.children if "--multiprocessing-fork" in child.cmdline()]
        worker.kill()

    def end(self) -> Sitting:
        exit_code = self.process.wait(PATIENCE)
        _, alive = psutil.wait_procs(self.children, timeout=20)
        self.stderr.close()
        text = (self.folder / "stderr.txt").read_text()
        return Sitting(exit_code, text, self.units(), len(alive))

    def _wait(self, is_reached) -> None:
        end = time.monotonic() + PATIENCE
        while not is_reached():
            assert self.process.poll() is None, (self.folder / "stderr.txt").read_text()
            assert time.monotonic() < end
            time.sleep(0.02)


@pytest.fixture(scope="module")
def pipeline():
    folder = tiny_runs.new_path("durability")
    folder.mkdir()
    questions = [f"{tiny_runs.DOCUMENTS[i * 7 % 6]} Question {i * 37 % NUM_ROWS}" for i in range(NUM_ROWS)]
    pq.write_table(pa.table({"id": range(NUM_ROWS), "question": questions}), folder / "rows.parquet")
    return {
        "name": "durable",
        "input": {"path": str(folder / "rows.parquet"), "id_column": "id"},
        "prompt": {"user": "{{ question }}"},
        "model": {"id": str(tiny_runs.model()), "max_model_len": 320},
        "engine": {
            "kv_cache": 300,
            "max_sequences": 8,
            "max_batch_tokens": 256,
            "device": "cpu",
            "batch_invariant": True,  # who is in a batch differs from sitting to sitting, and a last bit can change a token
        },
        "sampling": {"max_tokens": 60, "ignore_eos": True, "temperature": 1.0, "seed": 5},
        "output": {"path": "run"},
    }


@pytest.fixture(scope="module")
def story(pipeline):
    folder = tiny_runs.new_path("story")
    folder.mkdir()
    run = Run(folder, pipeline)
    try:
        yield run, dict(sittings(run))
    finally:
        if run.process.poll() is None:
            os.killpg(run.process.pid, signal.SIGKILL)


def sittings(run):
    run.start().wait_for_units(1)
    os.killpg(run.process.pid, signal.SIGINT)  # Ctrl-C in a terminal reaches every process
    yield "asked to stop", run.end()
    run.start().wait_for_units(1)
    os.killpg(run.process.pid, signal.SIGTERM)  # so does that of `timeout`
    run.wait_for_text("again stops at once")
    run.process.terminate()
    yield "interrupted", run.end()
    run.start().wait_for_units(1)
    os.killpg(run.process.pid, signal.SIGKILL)
    yield "all killed", run.end()
    run.start().wait_for_units(1)
    run.process.kill()
    yield "client killed", run.end()
    run.start().wait_for_units(1)
    run.kill_worker()
    yield "worker killed", run.end()


def test_each_sitting_ended_as_it_should(story):
    codes = {name: sitting.exit_code for name, sitting in story[1].items()}
    killed = -signal.SIGKILL
    assert codes == {"asked to stop": 3, "interrupted": 3, "all killed": killed, "client killed": killed, "worker killed": 0}


def test_every_sitting_was_in_the_middle_of_inference(story):
    counts = [len(sitting.units) for sitting in story[1].values()]
    assert 0 < counts[0] < counts[1] < counts[2] < counts[3] < counts[4]
    assert counts[4] == api.status(story[0].run_dir).num_units


def test_no_process_outlives_its_client(story):
    assert [sitting.num_left_alive for sitting in story[1].values()] == [0, 0, 0, 0, 0]


def test_nothing_listens_beyond_this_machine(story):
    assert story[0].addresses == {"127.0.0.1"}


def test_finished_units_are_never_computed_again(story):
    last = story[1]["worker killed"].units
    for sitting in story[1].values():
        assert sitting.units.items() <= last.items()


def test_an_interrupted_run_says_how_to_go_on_and_nothing_else(story):
    lines = story[1]["interrupted"].stderr.splitlines()
    shown = [line for line in lines if not line.startswith("[")]
    assert shown == ["interrupted", "Finished units are kept. To go on:", "  batchpaged run pipeline.yaml"]


def test_workers_do_not_hear_what_the_client_is_told(story):
    for name in ("asked to stop", "interrupted"):
        assert " lost; unfinished units" not in story[1][name].stderr
    assert "1 worker lost; unfinished units" in story[1]["worker killed"].stderr


def test_a_run_that_is_asked_to_stop_finishes_the_units_at_work(story):
    sitting = story[1]["asked to stop"]
    shown = [line for line in sitting.stderr.splitlines() if not line.startswith("[")]
    num_units = api.status(story[0].run_dir).num_units
    assert shown[0] == f"stopped as asked: {len(sitting.units)} of {num_units} units are done"
    assert shown[1:] == ["Finished units are kept. To go on:", "  batchpaged run pipeline.yaml"]


def test_the_log_tells_every_sitting_unit_and_end(story):
    lines = [json.loads(line) for line in (story[0].run_dir / "log.jsonl").read_text().splitlines()]
    starts = [line for line in lines if line["event"] == "run_started"]
    assert len({line["sitting"] for line in starts}) == len(starts) == 5 and len({line["run"] for line in lines}) == 1
    units = [line["unit"] for line in lines if line["event"] == "unit_done"]
    assert len(units) == len(set(units))  # one that was committed as its client was killed has no line
    ends = [line.get("error", "done") for line in lines if line["event"] in ("run_stopped", "run_finished")]
    assert ends == ["StoppedError", "KeyboardInterrupt", "done"]


def test_a_lost_worker_is_noted_and_replaced(story):
    assert "1 worker lost; unfinished units are computed again" in story[1]["worker killed"].stderr
    assert "Traceback" not in story[1]["worker killed"].stderr


def test_no_row_is_lost_or_doubled_and_all_are_as_if_nothing_had_happened(story, pipeline):
    undisturbed = api.run(
        {**pipeline, "cluster": {"scheduler": tiny_runs.cluster().scheduler_address}},
        run_dir=tiny_runs.new_path("undisturbed"),
    )
    ours, theirs = (tiny_runs.output(path).drop(["cached_tokens"]) for path in (story[0].run_dir, undisturbed.run_dir))
    assert ours["id"].to_pylist() == list(range(NUM_ROWS))
    differing = [a["id"] for a, b in zip(ours.to_pylist(), theirs.to_pylist(), strict=True) if a != b]
    assert differing == [] and ours.schema == theirs.schema


def test_the_report_covers_all_sittings(story):
    report = json.loads((story[0].run_dir / "report.json").read_text())
    assert report["rows"]["succeeded"] == NUM_ROWS
    assert report["tokens"]["completion"] == 60 * NUM_ROWS
    assert report["tokens"]["prompt"] == report["tokens"]["cached"] + report["tokens"]["prefilled"]
    assert len(report["workers"]) == 6  # engines: one of each sitting, and the one after the lost worker
    assert report["time"]["infer"] > 0 and report["time"]["total"] >= report["time"]["infer"]
    recorded = [json.loads(path.read_text()) for path in (story[0].run_dir / "sittings").glob("*.json")]
    assert len(recorded) == 2, "of the sitting that was asked to stop, and of the last one"


def test_a_run_that_is_ended_while_it_starts_has_written_nothing(pipeline):
    folder = tiny_runs.new_path("terminated")
    folder.mkdir()
    run = Run(folder, pipeline).start()
    run._wait(lambda: psutil.Process(run.process.pid).children())  # a worker process is being started
    run.children = psutil.Process(run.process.pid).children(recursive=True)
    run.process.terminate()
    sitting = run.end()
    assert (sitting.exit_code, sitting.num_left_alive) == (3, 0)
    assert sitting.stderr.splitlines()[0] == "interrupted"
    assert not run.run_dir.exists()
