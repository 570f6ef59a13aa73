"""What a program calls. The command line and batchpaged's public names are thin layers over this module."""

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from batchpaged.bench import BenchResult, bench_prepared
from batchpaged.cluster.graph import run_graph
from batchpaged.cluster.job import Job
from batchpaged.cluster.local import connect, num_workers
from batchpaged.config import Pipeline
from batchpaged.models.info import ModelInfo, list_models
from batchpaged.models.support import supported_architectures
from batchpaged.planner import PlanReport, plan_prepared
from batchpaged.planning.plan_file import has_plan, read_plan
from batchpaged.prepare import PipelineLike, Prepared, prepare, read_pipeline
from batchpaged.report.html import write_html
from batchpaged.report.json import write_json
from batchpaged.report.metrics import build_report
from batchpaged.report.prometheus import write_prometheus
from batchpaged.run.collect import Sitting, collect_facts
from batchpaged.run.directory import RunDirectory
from batchpaged.run.fingerprint import run_identity
from batchpaged.run.progress import NullReporter, Progress, ProgressReporter

SAMPLE_PIPELINE = "pipelines/rag_eval.yaml"


@dataclass(frozen=True)
class RunResult:
    report: dict[str, Any]  # report.json
    run_dir: Path
    exit_code: int  # 0: done; 1: done, a gate failed


@dataclass(frozen=True)
class Validation:
    pipeline: Pipeline
    num_rows: int
    num_files: int
    model_path: Path


@dataclass(frozen=True)
class RunStatus:
    name: str
    run_id: str
    state: Literal["running", "interrupted", "done", "not planned"]
    num_units: int | None
    num_units_done: int
    num_rows: int | None
    num_rows_done: int
    started_at: str | None  # ISO-8601, UTC
    updated_at: str | None
    owner: str | None


def run(
    pipeline: PipelineLike,
    *,
    overrides: Sequence[str] = (),
    limit: int | None = None,
    run_dir: Path | str | None = None,
    fresh: bool = False,
    reporter: ProgressReporter | None = None,
) -> RunResult:
    """Run a pipeline (a file's path, a mapping or a Pipeline), or go on with it where it was interrupted.

    `overrides` are "key.sub=value" strings; `run_dir` stands in for output.path; `fresh` discards an earlier run's files.
    Raises RefusedError before any work if something is wrong, UnfinishedError if the run stopped before its end.
    """
    started = time.perf_counter()
    reporter = reporter or NullReporter()
    prepared = prepare(read_pipeline(pipeline, overrides, limit), reporter.note)
    directory = RunDirectory(run_dir if run_dir is not None else prepared.pipeline.output.path)
    identity = run_identity(prepared.pipeline, prepared.model.identity, prepared.source.fingerprint())
    directory.check_usable(identity, fresh)
    with directory.lock():
        info = directory.open(prepared.pipeline.name, identity, fresh)
        if not directory.is_finished:
            _compute(prepared, directory, info["run_id"], reporter, started)
        else:
            reporter.note(f"{directory.path} is finished already; --fresh would start over")
        report = _write_report(prepared.pipeline, directory)
    is_passed = all(gate["passed"] for gate in report["gates"])
    return RunResult(report, directory.path, 0 if is_passed else 1)


def _compute(
    prepared: Prepared, directory: RunDirectory, run_id: str, reporter: ProgressReporter, started: float
) -> None:
    """Everything between the checks and the report; what earlier sittings finished is kept."""
    pipeline = prepared.pipeline
    reporter.update(Progress("load", 0, 1, "clusters"))
    with connect(pipeline.cluster, pipeline.engine.device) as client:
        job = Job(
            pipeline=pipeline,
            source=prepared.source,
            model=prepared.model,
            run_id=run_id,
            sitting=uuid.uuid4().hex[:12],
            run_path=str(directory.path.resolve()),
            num_workers=num_workers(client, pipeline.cluster),
        )
        seconds = run_graph(client, job, reporter)
    Sitting({**seconds, "total": time.perf_counter() - started}).write(directory.sittings, job.sitting)


def _write_report(pipeline: Pipeline, directory: RunDirectory) -> dict[str, Any]:
    summary, _ = read_plan(directory.path)
    facts = collect_facts(directory, pipeline, summary)
    report = build_report(facts)
    write_html(report, facts, directory.path / "report.html")
    write_prometheus(report, directory.path / "metrics.prom")
    write_json(report, directory.report)  # last: with it the run counts as finished
    return report


def plan(
    pipeline: PipelineLike,
    *,
    overrides: Sequence[str] = (),
    limit: int | None = None,
    reporter: ProgressReporter | None = None,
) -> PlanReport:
    """What a run would take: rows, tokens, sharing, memory, time. Computes no completion and writes nothing."""
    reporter = reporter or NullReporter()
    return plan_prepared(prepare(read_pipeline(pipeline, overrides, limit), reporter.note), reporter)


def validate(pipeline: PipelineLike, *, overrides: Sequence[str] = ()) -> Validation:
    """Check file, gates, input, columns, templates and model. Raises RefusedError."""
    prepared = prepare(read_pipeline(pipeline, overrides, None), NullReporter().note)
    source = prepared.source
    return Validation(prepared.pipeline, source.num_rows, len(source.files), prepared.model.path)


def status(run_dir: Path | str) -> RunStatus:
    """How far a run is, read from its directory alone. Raises RunDirectoryError."""
    directory = RunDirectory(run_dir)
    info, owner = directory.info(), directory.owner()
    summary, units = read_plan(directory.path) if has_plan(directory.path) else (None, [])
    done = [unit for unit in units if directory.is_unit_done(unit.index)]
    return RunStatus(
        name=info["name"],
        run_id=info["run_id"],
        state=_state(directory, owner is not None, summary is not None),
        num_units=summary.num_units if summary else None,
        num_units_done=len(done),
        num_rows=summary.num_rows if summary else None,
        num_rows_done=sum(unit.end - unit.start for unit in done),
        started_at=info["started_at"],
        updated_at=directory.updated_at(),
        owner=f"process {owner['pid']} on {owner['host']} since {owner['started_at']}" if owner else None,
    )


def _state(
    directory: RunDirectory, is_owned: bool, is_planned: bool
) -> Literal["running", "interrupted", "done", "not planned"]:
    if is_owned:
        return "running"
    if directory.is_finished:
        return "done"
    return "interrupted" if is_planned else "not planned"


def models() -> tuple[ModelInfo, ...]:
    """The model aliases and where each is on this machine."""
    return list_models()


def bench(
    pipeline: PipelineLike | None = None,
    *,
    max_tokens: int = 32,
    limit: int | None = None,
    reporter: ProgressReporter | None = None,
) -> BenchResult:
    """Time the engine alone on a pipeline's prompts, every completion forced to `max_tokens` tokens."""
    reporter = reporter or NullReporter()
    overrides = [f"sampling.max_tokens={max_tokens}"]
    prepared = prepare(read_pipeline(pipeline or SAMPLE_PIPELINE, overrides, limit), reporter.note)
    return bench_prepared(prepared, max_tokens, reporter)
