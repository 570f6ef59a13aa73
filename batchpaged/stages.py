"""A run of several stages: each is a run of its own, in a folder of the run directory, over the output of the one before.

    RUN/run.json                what the whole run is of
    RUN/stages/answer/          run directory of the first stage; its input is the run's
    RUN/stages/judge/           of the second; its input is stages/answer/output, the completion there under the name `answer`
    RUN/output/                 the last stage's output
    RUN/report.json             all stages together, and each of them

Each stage has a plan, units and a report of its own, so a run goes on in the stage, and with the unit, where it stopped. The engines,
with the model and the prefix cache, are one for all stages.
"""

import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from batchpaged.atomic import replacing
from batchpaged.cluster.engines import Engines, running_engines
from batchpaged.cluster.job import Job
from batchpaged.compute import Work, compute, make_job
from batchpaged.config import Pipeline
from batchpaged.dataset.sink import publish_copy
from batchpaged.dataset.source import Source, open_source
from batchpaged.dataset.stage_columns import added_columns, stage_names
from batchpaged.planning.plan_file import read_plan
from batchpaged.prepare import Prepared
from batchpaged.report.html import write_html, write_stages_html
from batchpaged.report.json import write_json
from batchpaged.report.metrics import build_report
from batchpaged.report.prometheus import write_prometheus
from batchpaged.report.stages import combine
from batchpaged.run.collect import collect_facts
from batchpaged.run.directory import RunDirectory

Identity = Callable[[Pipeline], dict[str, Any]]  # of a pipeline over the run's input


def compute_stages(work: Work, directory: RunDirectory, identity: Identity, started: float) -> None:
    """All stages that are not done, one after the other, each with its report; then the run's output."""
    pipeline = work.prepared.pipeline
    with ExitStack() as stack:
        engines = _SharedEngines(work, stack)
        for index, stage in enumerate(pipeline.stages):
            work.reporter.note(f"stage {index + 1} of {len(pipeline.stages)}: {stage.name}")
            _compute_stage(work, engines, directory, index, identity, started if index == 0 else time.perf_counter())
    publish_copy(directory.of_stage(pipeline.stages[-1].name).output, directory.output)


class _SharedEngines:
    """Started for the first stage that has work, and there until the last one is done."""

    def __init__(self, work: Work, stack: ExitStack) -> None:
        self._work, self._stack = work, stack
        self._engines: Engines | None = None
        self.sitting: str | None = None  # that they are named by

    def start(self, job: Job) -> Engines:
        if self._engines is None:
            self._stack.enter_context(self._work.client.as_current())  # a program may have a client of its own
            self._engines = self._stack.enter_context(running_engines(self._work.client, job))
            self.sitting = job.sitting
        return self._engines


def _compute_stage(
    work: Work, engines: _SharedEngines, directory: RunDirectory, index: int, identity: Identity, started: float
) -> None:
    whole = work.prepared.pipeline
    name = whole.stages[index].name
    own, keeper = directory.of_stage(name), work.keeper.of_stage(name)
    with own.lock():
        until_here = whole.model_copy(update={"stages": whole.stages[: index + 1]})
        info = own.open(whole.of_stage(index).name, identity(until_here), fresh=False)
        keeper.keep_all()
        is_finished = own.is_finished
        if not is_finished:
            prepared = _prepare_stage(work.prepared, directory, index)
            left = tuple(stage.name for stage in whole.stages[index:])
            job = make_job(work, prepared, own, info["run_id"], uuid.uuid4().hex[:12], engines.sitting, left)
            compute(replace(work, keeper=keeper), engines.start(job), job, prepared, started)
        write_stage_report(whole, directory, index, work.prepared.source.num_rows_left_out)
        keeper.keep_results(is_new_output=not is_finished)


def _prepare_stage(prepared: Prepared, directory: RunDirectory, index: int) -> Prepared:
    pipeline = prepared.pipeline.of_stage(index)
    if index == 0:
        return replace(prepared, pipeline=pipeline)
    return replace(prepared, pipeline=pipeline, source=_output_of(prepared.pipeline, index - 1, directory))


def _output_of(pipeline: Pipeline, index: int, directory: RunDirectory) -> Source:
    """A stage's output as the next one's input: every row, in order; what it added goes by its name."""
    name = pipeline.stages[index].name
    config = pipeline.input.model_copy(update={"path": str(directory.of_stage(name).output), "limit": None})
    return open_source(config, names=stage_names(name, added_columns(pipeline.of_stage(index))))


# --- reports ---


def write_stage_report(
    pipeline: Pipeline, directory: RunDirectory, index: int, num_rows_left_out: int = 0
) -> dict[str, Any]:
    """Of one stage whose output is there. `num_rows_left_out`: of the run's input."""
    own = directory.of_stage(pipeline.stages[index].name)
    before = [directory.of_stage(stage.name) for stage in pipeline.stages[:index]]
    facts = collect_facts(own, pipeline.of_stage(index), read_plan(own.path)[0], None, num_rows_left_out, before)
    report = build_report(facts)
    write_html(report, facts, own.path / "report.html")
    write_prometheus(report, own.path / "metrics.prom")
    write_json(report, own.report)
    return report


def write_stages_report(
    pipeline: Pipeline, directory: RunDirectory, previous: dict[str, Any] | None, num_rows_left_out: int = 0
) -> dict[str, Any]:
    """Of the whole run: of each stage, and of all together."""
    names = [stage.name for stage in pipeline.stages]
    reports = {name: write_stage_report(pipeline, directory, i, num_rows_left_out) for i, name in enumerate(names)}
    report = combine(directory.info(), reports, pipeline.gates, previous, num_rows_left_out)
    _join_scores(directory, reports)
    write_stages_html(report, directory.path / "report.html")
    write_prometheus(report, directory.path / "metrics.prom")
    write_json(report, directory.report)  # last: with it the run counts as finished
    return report


def _join_scores(directory: RunDirectory, stages: dict[str, Any]) -> None:
    """Each row's scores of all stages, under the names that the report has."""
    columns = {}
    every = [name for report in stages.values() for name in report["evaluation_details"] or {}]
    for stage, report in stages.items():
        table = _read_scores(directory.of_stage(stage).scores) if report["evaluation_details"] else {}
        columns |= {name if every.count(name) == 1 else f"{stage}.{name}": table[name] for name in table}
    if not columns:
        directory.scores.unlink(missing_ok=True)
        return
    with replacing(directory.scores) as half:
        pq.write_table(pa.table(columns), half)


def _read_scores(path: Path) -> dict[str, Any]:
    table = pq.read_table(path)
    return dict(zip(table.column_names, table.columns, strict=True))
