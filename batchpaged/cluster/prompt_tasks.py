"""Tasks before inference: read and tokenise a part, plan the whole."""

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from batchpaged.atomic import replacing
from batchpaged.cluster.count_tasks import load_reorder
from batchpaged.cluster.failure_limit import PartLimit
from batchpaged.cluster.job import Job
from batchpaged.cluster.libraries import import_model
from batchpaged.config import Pipeline
from batchpaged.dataset.ids import ids_as_text
from batchpaged.dataset.parts import Part
from batchpaged.dataset.prompts import PromptBuilder
from batchpaged.dataset.reorder import Reorder
from batchpaged.dataset.row_settings import add_row_settings
from batchpaged.dataset.source import Source
from batchpaged.errors import UnfinishedError
from batchpaged.models.load import load_tokenizer
from batchpaged.models.resolve import ResolvedModel
from batchpaged.planning.cost import ModelCost, cost_model, expected_decode_tokens
from batchpaged.planning.plan_file import PROMPTS_SCHEMA
from batchpaged.planning.planner import Each, PlanSettings, make_plan
from batchpaged.planning.summary import PlanSummary
from batchpaged.run.failed_rows import read_failed

_lock = threading.Lock()
# A step of planning takes about half a GiB, and a worker has more threads than that would allow.
_planning = threading.BoundedSemaphore(min(4, os.cpu_count() or 1))


class Builds(Protocol):
    """As PromptBuilder does."""

    def build(self, table: pa.Table) -> pa.Table: ...


def tokenise_part(job: Job, index: int, counted: object = None) -> dict[str, float]:
    """Write the prompts of one part, unless they are there already. -> seconds spent reading and tokenising, and num_failed.

    `counted` is the task that counts documents, which has to be over.
    """
    part = job.source.parts[index]
    target = job.directory.prompt_file(part)
    if target.exists():
        return {"read": 0.0, "tokenize": 0.0, "num_failed": len(read_failed(target, ["status"]))}
    import_model(job.model)
    with replacing(target) as temporary:
        facts = write_prompts(
            temporary, job.pipeline, job.source, part, job.model, load_reorder(job), job.pipeline.max_failed_rows
        )
        job.check_is_current()
    return facts


def write_prompts(
    path: Path,
    pipeline: Pipeline,
    source: Source,
    part: Part,
    model: ResolvedModel,
    reorder: Reorder | None,
    max_failed_rows: int | None = None,
    builder: Builds | None = None,
) -> dict[str, float]:
    """Write a part's prompts (PROMPTS_SCHEMA, one row per input row). -> as tokenise_part

    `builder`: makes others than the run's.
    Raises UnfinishedError once more rows have failed than are borne.
    """
    clock, failed = _Clock(), PartLimit(max_failed_rows)
    builder = builder or prompt_builder(pipeline, model)
    with pq.ParquetWriter(path, PROMPTS_SCHEMA, compression="zstd") as writer:
        first = part.first_ordinal
        for rows in clock.reading(source.iter_tables(part)):
            prompts = _build_prompts(builder, rows, first, pipeline, reorder)
            writer.write_table(prompts)
            first += rows.num_rows
            failed.add(prompts)
    return {"read": clock.read, "tokenize": clock.rest, "num_failed": failed.num_failed}


class _Clock:
    """Parts the seconds spent reading from the rest."""

    def __init__(self) -> None:
        self.read = 0.0
        self._started = time.perf_counter()

    @property
    def rest(self) -> float:
        return time.perf_counter() - self._started - self.read

    def reading(self, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        while True:
            started = time.perf_counter()
            table = next(tables, None)
            self.read += time.perf_counter() - started
            if table is None:
                return
            yield table


def _build_prompts(
    builder: Builds, rows: pa.Table, first_ordinal: int, pipeline: Pipeline, reorder: Reorder | None
) -> pa.Table:
    """All columns were read, not only those of the prompt: a damaged one must show now, not when the output is
    written."""
    prompts = builder.build(rows if reorder is None else reorder.apply(rows))
    id_column = pipeline.input.id_column
    ordinals = pa.array(np.arange(first_ordinal, first_ordinal + rows.num_rows))
    ids = ids_as_text(rows[id_column] if id_column else ordinals)
    table = prompts.append_column("ordinal", ordinals).append_column("row_id", ids)
    table = add_row_settings(table, rows, pipeline)
    return table.select(PROMPTS_SCHEMA.names).cast(PROMPTS_SCHEMA)


def prompt_builder(pipeline: Pipeline, model: ResolvedModel) -> PromptBuilder:
    # Templates and tokenizer cannot be pickled: each worker makes them once, whichever of its threads comes first.
    with _lock:
        return _make_prompt_builder(pipeline, model)


@lru_cache(maxsize=1)
def _make_prompt_builder(pipeline: Pipeline, model: ResolvedModel) -> PromptBuilder:
    tokenizer = load_tokenizer(model)
    return PromptBuilder(pipeline.prompt, tokenizer, pipeline.model.max_model_len, pipeline.sampling.max_tokens)


def plan_run(job: Job, model: ModelCost | None, each: Each) -> PlanSummary:
    """Plan over all tokenised parts, the steps wherever `each` runs them."""
    if any(job.directory.units.glob("unit-*.parquet")):
        raise UnfinishedError(f"{job.run_path} has units but no plan, without which they fit nowhere; use --fresh")
    files = [job.directory.prompt_file(part) for part in job.source.parts]
    work = job.directory.plan_work(job.sitting)
    work.mkdir()
    try:
        return make_plan(files, work, job.directory.path, plan_settings(job.pipeline, model, job.num_workers), each)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def plan_step(function: Callable[..., Any], *arguments: Any) -> Any:
    """One step of planning, as a task."""
    with _planning:
        return function(*arguments)


def plan_settings(pipeline: Pipeline, model: ModelCost | None, num_workers: int) -> PlanSettings:
    sampling = pipeline.sampling
    num_decode_tokens = expected_decode_tokens(sampling.max_tokens, sampling.ignore_eos) * sampling.num_sequences
    return PlanSettings(cost_model(model, num_decode_tokens, sampling.temperature == 0), num_workers)
