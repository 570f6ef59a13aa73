"""Run directories of runs that are over, made by hand: no model, no cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from report.synthetic import make_facts

from batchpaged.report.metrics import build_report
from batchpaged.run.fingerprint import fingerprint


def make_run(path: Path, day: int = 1, *, rows: list[dict[str, Any]] | None = None, limit: int | None = None, **facts: Any) -> Path:
    """A finished run of March `day`, 2026; `rows` of its output, `facts` as in make_facts."""
    facts = {"run_id": f"rag_eval-{day:02}", "name": "rag_eval", "gates": (), **facts}
    moments = {key: f"2026-03-{day:02}T0{hour}:15:00+00:00" for hour, key in ((2, "started_at"), (3, "finished_at"))}
    report = build_report(make_facts(**{**moments, **facts}))
    path.mkdir(parents=True)
    (path / "report.json").write_text(json.dumps(report))
    _write_info(path, report["run"], limit)
    for name in ("units", "prompts"):
        (path / name).mkdir()
    (path / "units" / "unit-000000.parquet").write_bytes(b"x" * 1000)
    _write_output(path / "output", rows or [])
    return path


def make_unfinished(path: Path, day: int = 1) -> Path:
    make_run(path, day)
    (path / "report.json").unlink()
    (path / "output" / "_SUCCESS").unlink()
    return path


def _write_info(path: Path, run: dict[str, Any], limit: int | None) -> None:
    identity = {
        "pipeline": {"input": {"path": "rows.parquet", "id_column": "id", "limit": limit}, "prompt": {"user": "secret"}},
        "model": "m",
        "input": [],
    }
    info = {"format": 1, "run_id": run["id"], "name": run["name"], "fingerprint": fingerprint(identity)}
    (path / "run.json").write_text(json.dumps({**info, "started_at": run["started_at"], "identity": identity}))
    (path / "lock").touch()


OUTPUT = pa.schema(
    [
        ("id", pa.string()),
        ("answers", pa.list_(pa.string())),
        ("completion", pa.string()),
        ("status", pa.string()),
        ("prompt_hash", pa.string()),
    ]
)


def row(row_id: Any, completion: str | None, answer: str | None = "yes", prompt: str = "p") -> dict[str, Any]:
    """Of the output; a row without completion has failed."""
    return {
        "id": row_id,
        "answers": None if answer is None else [answer],
        "completion": completion,
        "status": "failed" if completion is None else "ok",
        "prompt_hash": prompt,
    }


def _write_output(folder: Path, rows: list[dict[str, Any]]) -> None:
    folder.mkdir()
    half = len(rows) // 2
    for name, part in (("a", rows[:half]), ("b", rows[half:])):
        pq.write_table(pa.Table.from_pylist(part, OUTPUT), folder / f"{name}.parquet")
    (folder / "_SUCCESS").touch()
