"""Whole runs over a tiny random model: its folder, an awkward data set, and one Dask cluster for all tests.

Starting worker processes and importing torch in them takes seconds, so tests share what can be shared. Everything is
made on first use and lives until the tests end.
"""

import atexit
import functools
import itertools
import logging
import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from unittest import mock

import dask
import pyarrow as pa
import pyarrow.parquet as pq
from distributed import Client, LocalCluster
from tiny_models import save_tiny

from batchpaged import api
from batchpaged.cluster import local
from batchpaged.dataset import source
from batchpaged.dataset.parts import PartSize
from batchpaged.run.progress import NullReporter, Progress

SYSTEM = "Answer from the document."
USER = (
    "{{ document }}{% for question in questions %} {{ question }}{% endfor %}"
    "{{ '' if divisor else 1 // divisor }}{{ '' if when.year }}"
)
DOCUMENTS = [f"Document {i}. " + "Many questions share this sentence. " * (1 + i % 3) for i in range(6)]
MAX_TOKENS = 8
SHARDS = {"b.parquet": 25, "a.parquet": 0, "c.parquet": 29, "d.parquet": 6}  # rows by file
NUM_ROWS = sum(SHARDS.values())
# Rows that cannot be computed, and a piece of the reason that each gets.
FAILED = {7: "null", 18: "empty prompt", 29: "too long", 40: "ZeroDivisionError", 51: "cannot be read"}
DUPLICATES = (3, 44)

_numbers = itertools.count()


@functools.cache
def folder() -> Path:
    holder = tempfile.TemporaryDirectory(prefix="batchpaged-tests-", ignore_cleanup_errors=True)
    atexit.register(holder.cleanup)
    return Path(holder.name)


def new_path(name: str) -> Path:
    """A path where nothing is yet."""
    return folder() / f"{name}-{next(_numbers)}"


@functools.cache
def model() -> Path:
    return save_tiny(folder() / "model")


# --- the data set ---


def rows() -> list[dict[str, Any]]:
    """In input order, which is shuffled: neighbours share nothing but the system text."""
    pairs = [(i % len(DOCUMENTS), i) for i in range(NUM_ROWS)]
    random.Random(0).shuffle(pairs)
    made = [_row(document, question) for document, question in pairs]
    made[DUPLICATES[1]] |= {key: made[DUPLICATES[0]][key] for key in ("document", "questions")}
    made[7] |= {"document": None}
    made[18] |= {"document": " ", "questions": []}
    made[29] |= {"questions": ["long " * 100]}
    made[40] |= {"divisor": 0}
    made[51] |= {"when": 10**12}
    return made


def _row(document: int, question: int) -> dict[str, Any]:
    return {
        "id": f"row-{question}",
        "document": DOCUMENTS[document],
        "questions": [f"What is {question}?"] + ["And why?"] * (question % 2),
        "divisor": 1 + question % 3,
        "when": int(datetime(2024, 1, 1 + question % 28, tzinfo=timezone.utc).timestamp()),
        "settings": {"level": question % 5 or None, "names": ["x", None][: question % 3]},
        "large": None if question % 4 == 0 else f"large {question}",
        "answers": [f"answer {question}"],
    }


SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("document", pa.dictionary(pa.int8(), pa.string())),
        ("questions", pa.list_(pa.string())),
        ("divisor", pa.int64()),
        ("when", pa.timestamp("s", "Europe/Paris")),
        ("settings", pa.struct([("level", pa.int64()), ("names", pa.list_(pa.string()))])),
        ("large", pa.large_string()),
        ("answers", pa.list_(pa.string())),
    ]
)


@functools.cache
def data() -> Path:
    """A folder of Parquet files; one has no rows, and in another a column is nothing but nulls, without a type."""
    target, first, everything = folder() / "data", 0, rows()
    target.mkdir()
    for name in sorted(SHARDS):
        table = pa.Table.from_pylist(everything[first : first + SHARDS[name]], SCHEMA)
        texts = pa.array([f"{name} {i}" for i in range(table.num_rows)], pa.string())
        table = table.append_column("nothing", pa.nulls(len(texts)) if name == "b.parquet" else texts)
        pq.write_table(table, target / name, row_group_size=10)
        first += table.num_rows
    return target


# --- the cluster ---


@functools.cache
def cluster() -> LocalCluster:
    """One worker process that outlives the runs on it, as in a cluster that somebody else started."""
    with local._without_main_module(), dask.config.set(local._local_settings()):
        made = LocalCluster(
            n_workers=1,
            threads_per_worker=4,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            memory_limit=0,
            silence_logs=logging.CRITICAL,
        )
    atexit.register(made.close)
    return made


def on_workers(function: Any, *args: Any) -> list[Any]:
    with Client(cluster(), set_as_default=False) as client:
        return list(client.run(function, *args).values())


def count_engines() -> tuple[int, int]:
    """Runs on a worker: (engine threads alive, engines in memory)."""
    import gc
    import threading

    from batchpaged.engine.engine import Engine

    gc.collect()
    threads = [thread for thread in threading.enumerate() if thread.name == "batchpaged-engine"]
    for thread in threads:
        thread.join(10)
    gc.collect()
    engines = [thing for thing in gc.get_objects() if isinstance(thing, Engine)]
    return sum(thread.is_alive() for thread in threads), len(engines)


# --- runs ---


def pipeline(run_dir: Path, **sections: Any) -> dict[str, Any]:
    """A pipeline file's content; a section given takes the place of the usual one."""
    return {
        "name": "tiny",
        "input": {"path": str(data()), "id_column": "id"},
        "prompt": {"system": SYSTEM, "user": USER},
        "model": {"id": str(model()), "max_model_len": 320},
        "engine": {"kv_cache": 300, "max_sequences": 16, "max_batch_tokens": 256, "device": "cpu"},
        "sampling": {"max_tokens": MAX_TOKENS},
        "evaluate": {"references": "answers", "metrics": ["exact_match", "f1"]},
        "gates": ["prefix_cache_hit_rate >= 0.5", f"failed_rows <= {len(FAILED)}"],
        "cluster": {"scheduler": cluster().scheduler_address},
        "output": {"path": str(run_dir)},
        **sections,
    }


@contextmanager
def several_parts() -> Iterator[None]:
    """Sources opened here have a part for each file, however small these are."""
    with mock.patch.object(source, "PART_SIZE", PartSize(num_files=1)):
        yield


@functools.cache
def finished_run() -> api.RunResult:
    """Of the usual pipeline. Its directory may be read and run again, but is not to be changed."""
    with several_parts():
        return api.run(pipeline(new_path("finished")))


def output(run_dir: Path, columns: list[str] | None = None) -> pa.Table:
    """All output rows, file by file."""
    files = sorted((run_dir / "output").glob("*.parquet"))
    return pa.concat_tables(pq.read_table(path, columns=columns) for path in files)


def copy_of_finished_run() -> Path:
    """To be changed."""
    return Path(shutil.copytree(finished_run().run_dir, new_path("copy")))


def copy_of_unfinished_run() -> Path:
    """As the run was when two of its units were missing and nothing was assembled."""
    run_dir = copy_of_finished_run()
    shutil.rmtree(run_dir / "output")
    (run_dir / "report.json").unlink()
    for unit in (0, 2):
        (run_dir / "units" / f"unit-{unit:06}.parquet").unlink()
    return run_dir


class Notes(NullReporter):
    """What a run has said."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.stages: list[str] = []

    def note(self, message: str) -> None:
        self.lines.append(message)

    def update(self, progress: Progress) -> None:
        if progress.stage not in self.stages[-1:]:
            self.stages.append(progress.stage)


def snapshot(path: Path) -> dict[str, tuple[int, int]]:
    """Inode and time of each file in the folder."""
    files = (file for file in path.rglob("*") if file.is_file())
    return {str(file.relative_to(path)): (file.stat().st_ino, file.stat().st_mtime_ns) for file in files}
