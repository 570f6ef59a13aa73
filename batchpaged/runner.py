"""A whole run behind `batchpaged run`: from a pipeline to its report, or on from where an earlier sitting stopped."""

import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributed import Client

from batchpaged.cluster.engines import running_engines
from batchpaged.cluster.local import connecting
from batchpaged.compute import Work, compute, make_job
from batchpaged.config import Pipeline
from batchpaged.dataset.source import Source
from batchpaged.errors import RefusedError, RunDirectoryError, UnfinishedError
from batchpaged.models.adapters import Adapter, find_adapters
from batchpaged.models.resolve import ResolvedModel
from batchpaged.past.previous import previous_report
from batchpaged.past.runs import read_report
from batchpaged.planning.plan_file import has_plan, read_plan
from batchpaged.prepare import Prepared, find_model, judge_model, open_input
from batchpaged.report.html import write_html
from batchpaged.report.json import write_json
from batchpaged.report.metrics import build_report
from batchpaged.report.prometheus import write_prometheus
from batchpaged.run.collect import collect_facts
from batchpaged.run.directory import RunDirectory
from batchpaged.run.fingerprint import run_identity
from batchpaged.run.log import logging_to
from batchpaged.run.progress import Progress, ProgressReporter
from batchpaged.run.retry import Retry, find_retry
from batchpaged.run.stopping import StopRequest
from batchpaged.run.store import is_on_store, name_of
from batchpaged.run.stored import opening
from batchpaged.stages import compute_stages, write_stages_report


@dataclass(frozen=True)
class RunResult:
    report: dict[str, Any]  # report.json
    run_dir: Path  # on this machine; of a run directory on a store the working copy
    location: str  # of the run directory, as it was given; a URL without credentials
    exit_code: int  # 0: done; 1: done, a gate failed


def run_pipeline(
    pipeline: Pipeline,
    reporter: ProgressReporter,
    run_dir: Path | str | None = None,
    fresh: bool = False,
    rows_digest: str | None = None,
    retry_failed: bool = False,
    stop: StopRequest | None = None,
) -> RunResult:
    """Run, or go on. `rows_digest` stands for the input's files where they are copies of rows in memory.

    With `retry_failed` rows of finished units that have a prompt and failed all the same are computed again.

    Raises RefusedError before anything is written, and UnfinishedError afterwards.
    """
    started = time.perf_counter()
    location = pipeline.output.path if run_dir is None else run_dir
    if retry_failed and pipeline.stages and is_on_store(location):
        raise RunDirectoryError("--retry-failed: of a run with stages only where the run directory is a folder, in this version")
    source, model = open_input(pipeline, location), find_model(pipeline, reporter.note)
    adapters = find_adapters(pipeline.model.adapters)

    def identity_of(pipeline: Pipeline) -> dict[str, Any]:
        return run_identity(pipeline, model.identity, source.fingerprint(), rows_digest, adapters)

    identity = identity_of(pipeline)
    name = name_of(location)
    with ExitStack() as stack:
        directory, keeper = stack.enter_context(opening(location, reporter.note))
        directory.check_usable(identity, fresh)
        retry = _rows_to_retry(directory, pipeline, reporter) if retry_failed and not fresh else Retry()
        is_finished = directory.is_finished and not fresh and retry.is_empty
        ready = None if is_finished else stack.enter_context(_getting_ready(pipeline, source, model, adapters, reporter))
        stack.enter_context(directory.lock())
        info = directory.open(pipeline.name, identity, fresh)
        sitting = uuid.uuid4().hex[:12]
        with _going_on_later(directory), logging_to(directory.log, reporter) as reporter:
            _log_start(reporter, info, pipeline, sitting)
            retry.begin(directory)
            keeper.keep_all()
            if ready is None:
                reporter.note(f"{name} is finished already; --fresh would start over")
            else:
                work = Work(*ready, keeper, reporter, stop or StopRequest())
                if pipeline.stages:
                    compute_stages(work, directory, identity_of, started)
                else:
                    _compute(work, directory, info["run_id"], sitting, started)
            report = _write_report(pipeline, directory, location, source.num_rows_left_out, reporter)
            exit_code = 0 if all(gate["passed"] for gate in report["gates"]) else 1
            keeper.keep_results(is_new_output=ready is not None)
            _log_end(reporter, report, exit_code)
    return RunResult(report, directory.path, name, exit_code)


def _log_start(reporter: ProgressReporter, info: dict[str, Any], pipeline: Pipeline, sitting: str) -> None:
    about = {key: info[key] for key in ("name", "fingerprint", "started_at")}
    reporter.log("run_started", run=info["run_id"], sitting=sitting, **about, model=pipeline.model.id)


def _log_end(reporter: ProgressReporter, report: dict[str, Any], exit_code: int) -> None:
    for gate in report["gates"]:
        reporter.log("gate", **gate)
    figures = {key: report[key] for key in ("rows", "tokens", "prefix_cache_hit_rate", "evaluation")}
    reporter.log("run_finished", exit_code=exit_code, **figures)


def _rows_to_retry(directory: RunDirectory, pipeline: Pipeline, reporter: ProgressReporter) -> Retry:
    retry = find_retry(directory, [stage.name for stage in pipeline.stages])
    for line in retry.notes():
        reporter.note(line)
    return retry


@contextmanager
def _getting_ready(
    pipeline: Pipeline,
    source: Source,
    model: ResolvedModel,
    adapters: tuple[Adapter, ...],
    reporter: ProgressReporter,
) -> Iterator[tuple[Client, Prepared]]:
    """Worker processes start while this one judges the model."""
    with connecting(pipeline.cluster, pipeline.engine.device, reporter.note) as get_client:
        prepared = judge_model(pipeline, source, model, adapters)
        reporter.update(Progress("start", 0, 1, "clusters"))
        client = get_client()
        reporter.update(Progress("start", 1, 1, "clusters"))
        yield client, prepared


@contextmanager
def _going_on_later(directory: RunDirectory) -> Iterator[None]:
    """Once the run directory is written, nothing is refused any more: what goes wrong leaves the run unfinished."""
    try:
        yield
    except RefusedError as error:
        raise UnfinishedError(str(error)) from error
    except OSError as error:
        raise UnfinishedError(f"{error.filename or directory.path}: {error.strerror or error}") from error


def _compute(work: Work, directory: RunDirectory, run_id: str, sitting: str, started: float) -> None:
    """Everything between the checks and the report, of a run without stages."""
    job = make_job(work, work.prepared, directory, run_id, sitting)
    with work.client.as_current(), running_engines(work.client, job) as engines:  # a program may have a client of its own
        compute(work, engines, job, work.prepared, started)


def _write_report(
    pipeline: Pipeline, directory: RunDirectory, location: Path | str, num_left_out: int, reporter: ProgressReporter
) -> dict[str, Any]:
    reporter.update(Progress("report", 0, 3, "files"))
    is_there = directory.of_stage(pipeline.stages[-1].name).exists if pipeline.stages else has_plan(directory.path)
    if not is_there:
        reporter.note(f"of {directory.path} only the results were kept; its report stays as it is")
        return read_report(directory.report)
    previous = previous_report(pipeline, directory, location)
    if pipeline.stages:
        return write_stages_report(pipeline, directory, previous, num_left_out)
    facts = collect_facts(directory, pipeline, read_plan(directory.path)[0], previous, num_left_out)
    report = build_report(facts)
    write_html(report, facts, directory.path / "report.html")
    write_prometheus(report, directory.path / "metrics.prom")
    write_json(report, directory.report)  # last: with it the run counts as finished
    reporter.update(Progress("report", 3, 3, "files"))
    return report
