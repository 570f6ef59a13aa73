"""The dry run of a pipeline with stages: whole plans where prompts are known, and what is known of the others."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow.parquet as pq

from batchpaged.cluster.count_tasks import count_here
from batchpaged.cluster.prompt_tasks import plan_settings, prompt_builder
from batchpaged.config import Pipeline
from batchpaged.dataset.beginnings import NOTHING_KNOWN, BeginningBuilder
from batchpaged.dataset.prompts import prompt_columns
from batchpaged.dataset.stage_columns import added_columns, stage_fields
from batchpaged.planner import PlanReport, plan_prepared, subfolder, tokenise
from batchpaged.planning.planner import preview_plan
from batchpaged.prepare import Prepared
from batchpaged.run.progress import ProgressReporter
from batchpaged.simulation.request import SimulationRequest


@dataclass(frozen=True)
class OpenPlan:
    """What can be said, before the run, of a stage whose prompts need what an earlier one says."""

    uses: tuple[str, ...]  # columns that are not known yet
    num_rows: int
    num_failed: int  # rows that fail whatever the earlier stages say
    num_known_tokens: int  # at the beginnings of prompts, before the first use of such a column
    num_unique_tokens: int  # of these: left if every shared prefix is computed once
    max_tokens: int  # of a completion


@dataclass(frozen=True)
class StagePlan:
    name: str
    plan: PlanReport | OpenPlan


def plan_stages(
    prepared: Prepared, reporter: ProgressReporter, request: SimulationRequest | None = None
) -> tuple[StagePlan, ...]:
    """Of each stage, in order. Each is planned, and simulated, as if it ran alone: with an empty cache."""
    return tuple(_plans(prepared, reporter, request))


def _plans(
    prepared: Prepared, reporter: ProgressReporter, request: SimulationRequest | None
) -> Iterator[StagePlan]:
    later: set[str] = set()  # columns that the input lacks
    for stage, single in zip(prepared.pipeline.stages, prepared.pipeline.single, strict=True):
        reporter.note(f"stage {stage.name}")
        alone = replace(prepared, pipeline=single)
        uses = tuple(name for name in _columns_of(single) if name in later)
        plan = _plan_open(alone, uses, reporter) if uses else plan_prepared(alone, reporter, request)
        yield StagePlan(stage.name, plan)
        later |= {field.name for field in stage_fields(stage.name, added_columns(single))}


def _columns_of(pipeline: Pipeline) -> list[str]:
    """That prompts and grammars are made from."""
    structured = pipeline.sampling.structured
    more = [pipeline.prompt.reorder, None if structured is None else structured.column]
    return sorted({*prompt_columns(pipeline.prompt), *filter(None, more)})


def _plan_open(prepared: Prepared, uses: tuple[str, ...], reporter: ProgressReporter) -> OpenPlan:
    pipeline = _without(prepared.pipeline, uses)
    open_plan = OpenPlan(uses, prepared.source.num_rows, 0, 0, 0, pipeline.sampling.max_tokens)
    if pipeline.prompt.user is None:  # the prompt is the earlier stage's column itself
        return open_plan
    prepared = replace(prepared, pipeline=pipeline)
    builder = BeginningBuilder(pipeline.prompt, prompt_builder(pipeline, prepared.model), uses)
    reorder = count_here(pipeline, prepared.source, reporter)
    with TemporaryDirectory(prefix="batchpaged-plan-") as folder:
        files = tokenise(prepared, Path(folder), reorder, reporter, builder)
        settings = plan_settings(pipeline, None, num_workers=1)
        summary, _ = preview_plan(files, subfolder(folder, "work"), settings)
        num_failed = sum(map(_num_failed, files))
    return replace(
        open_plan,
        num_failed=num_failed,
        num_known_tokens=summary.num_prompt_tokens,
        num_unique_tokens=summary.num_unique_tokens,
    )


def _without(pipeline: Pipeline, uses: tuple[str, ...]) -> Pipeline:
    """Without an order of documents, and grammars, that are not known yet."""
    prompt, sampling = pipeline.prompt, pipeline.sampling
    if prompt.reorder in uses:
        prompt = prompt.model_copy(update={"reorder": None})
    if sampling.structured is not None and sampling.structured.column in uses:
        sampling = sampling.model_copy(update={"structured": None})
    return pipeline.model_copy(update={"prompt": prompt, "sampling": sampling})


def _num_failed(path: Path) -> int:
    rows = pq.read_table(path, columns=["status", "error"]).to_pylist()
    return sum(row["status"] == "failed" and row["error"] != NOTHING_KNOWN for row in rows)
