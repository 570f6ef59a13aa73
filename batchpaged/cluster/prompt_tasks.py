"""Tasks before inference: read and tokenise a part, plan the whole."""

import threading
import time
from collections.abc import Sequence
from functools import lru_cache

import pyarrow as pa
import pyarrow.parquet as pq

from batchpaged.atomic import replacing
from batchpaged.cluster.count_tasks import load_reorder
from batchpaged.cluster.job import Job
from batchpaged.cluster.libraries import import_model
from batchpaged.config import Pipeline
from batchpaged.dataset.parts import Part
from batchpaged.dataset.prompts import PromptBuilder
from batchpaged.dataset.reorder import Reorder
from batchpaged.dataset.source import Source
from batchpaged.errors import UnfinishedError
from batchpaged.models.load import load_tokenizer
from batchpaged.models.resolve import ResolvedModel
from batchpaged.planning.plan_file import PROMPTS_SCHEMA, has_plan, plan_table, read_plan, read_prompts, write_plan
from batchpaged.planning.summary import PlanSummary

_lock = threading.Lock()


def tokenise_part(job: Job, index: int, counted: object = None) -> dict[str, float]:
    """Write the prompts of one part, unless they are there already. -> seconds spent reading and tokenising.

    `counted` is the task that counts documents, which has to be over.
    """
    target = job.directory.prompt_file(index)
    if target.exists():
        return {"read": 0.0, "tokenize": 0.0}
    import_model(job.model)
    prompts, seconds = build_prompts(
        job.pipeline, job.source, job.source.parts[index], job.model, load_reorder(job)
    )
    job.check_is_current()
    with replacing(target) as temporary:
        pq.write_table(prompts, temporary, compression="zstd")
    return seconds


def build_prompts(
    pipeline: Pipeline, source: Source, part: Part, model: ResolvedModel, reorder: Reorder | None
) -> tuple[pa.Table, dict[str, float]]:
    """-> (PROMPTS_SCHEMA, one row per input row; seconds spent reading and tokenising).

    All columns are read, not only those of the prompt: a damaged one must show now, not when the output is written.
    """
    builder = _prompt_builder(pipeline, model)
    id_column = pipeline.input.id_column
    started = time.perf_counter()
    rows = source.read(part)
    read = time.perf_counter()
    prompts = builder.build(rows if reorder is None else reorder.apply(rows))
    ordinals = pa.array(range(part.first_ordinal, part.first_ordinal + part.num_rows), pa.int64())
    ids = _as_text(rows[id_column] if id_column else ordinals)
    table = prompts.append_column("ordinal", ordinals).append_column("row_id", ids).select(PROMPTS_SCHEMA.names)
    return table.cast(PROMPTS_SCHEMA), {"read": read - started, "tokenize": time.perf_counter() - read}


def _as_text(ids: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    try:
        return ids.cast(pa.string())
    except pa.ArrowInvalid:  # binary ids that are no UTF-8
        return pa.array([value.decode(errors="backslashreplace") for value in ids.to_pylist()], pa.string())


def _prompt_builder(pipeline: Pipeline, model: ResolvedModel) -> PromptBuilder:
    # Templates and tokenizer cannot be pickled: each worker makes them once, whichever of its threads comes first.
    with _lock:
        return _make_prompt_builder(pipeline, model)


@lru_cache(maxsize=1)
def _make_prompt_builder(pipeline: Pipeline, model: ResolvedModel) -> PromptBuilder:
    tokenizer = load_tokenizer(model)
    return PromptBuilder(pipeline.prompt, tokenizer, pipeline.model.max_model_len, pipeline.sampling.max_tokens)


def plan_run(job: Job, seconds: Sequence[dict[str, float]]) -> tuple[PlanSummary, dict[str, float]]:
    """Plan over all tokenised parts. `seconds`: what the tokenise tasks returned. -> summary, seconds by stage."""
    started = time.perf_counter()
    if not has_plan(job.directory.path):
        _write_plan(job)
    times = {key: sum(s[key] for s in seconds) for key in ("read", "tokenize")}
    return read_plan(job.directory.path)[0], {**times, "plan": time.perf_counter() - started}


def _write_plan(job: Job) -> None:
    if any(job.directory.units.glob("unit-*.parquet")):
        raise UnfinishedError(f"{job.run_path} has units but no plan, without which they fit nowhere; use --fresh")
    files = [job.directory.prompt_file(part.index) for part in job.source.parts]
    plan = plan_table(read_prompts(files), job.pipeline.sampling.max_tokens, job.num_workers)
    job.check_is_current()
    write_plan(job.directory.path, *plan)
