"""Everything that is judged before any work: pipeline file, gates, model, input, columns. Writes nothing."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from batchpaged.config import EngineConfig, Pipeline, StructuredConfig, load_pipeline, parse_pipeline
from batchpaged.dataset.adapter_column import check_adapter_column
from batchpaged.dataset.constraint_column import check_constraint_column
from batchpaged.dataset.prompts import PromptBuilder, validate_prompt_columns
from batchpaged.dataset.schema import OUTPUT_COLUMNS, describe_clashes, no_column, output_columns
from batchpaged.dataset.source import Source, open_source
from batchpaged.dataset.stage_columns import added_columns, example_row, stage_fields, stage_names
from batchpaged.engine.attention_check import check_attention
from batchpaged.engine.cache_sizes import check_cache_sizes, check_room
from batchpaged.errors import ConfigError, InputError, ModelError, RefusedError
from batchpaged.evaluation.evaluator import check_references
from batchpaged.evaluation.metrics import metric_names
from batchpaged.evaluation.pipeline import metrics_of, try_on_first_row
from batchpaged.models.adapters import Adapter, find_adapters
from batchpaged.models.load import load_config, load_tokenizer, note_on_code, resolve_dtype
from batchpaged.models.resolve import ResolvedModel, resolve_model
from batchpaged.models.support import check_supported
from batchpaged.past.previous import check_previous
from batchpaged.planning.keys import MAX_TOKEN_ID
from batchpaged.report.gates import DISK_TIER, EARLIER_STAGES, MEMORY_TIERS, STRUCTURED, parse_gates
from batchpaged.run.store import is_on_store, name_of
from batchpaged.structured.grammar import file_of, grammar_of

PipelineLike = str | Path | Pipeline | Mapping[str, Any]


@dataclass(frozen=True)
class Prepared:
    """A pipeline that can run."""

    pipeline: Pipeline
    model: ResolvedModel
    config: Any  # the model's transformers configuration
    source: Source
    adapters: tuple[Adapter, ...] = ()


def read_pipeline(pipeline: PipelineLike, overrides: Sequence[str], limit: int | None) -> Pipeline:
    """Raises ConfigError with every problem."""
    if limit is not None:
        overrides = [*overrides, f"input.limit={limit}"]
    if isinstance(pipeline, (str, Path)):
        return load_pipeline(pipeline, overrides)
    mapping = pipeline.model_dump(mode="json") if isinstance(pipeline, Pipeline) else pipeline
    return parse_pipeline(mapping, overrides=overrides)


def first_stage(prepared: Prepared) -> Prepared:
    """What can be computed without anything else being computed before."""
    return replace(prepared, pipeline=prepared.pipeline.single[0])


def prepare(pipeline: Pipeline, note: Callable[[str], None]) -> Prepared:
    """Raises RefusedError (a subclass says of what) before anything is written."""
    source = open_input(pipeline)
    return judge_model(pipeline, source, find_model(pipeline, note), find_adapters(pipeline.model.adapters))


def open_input(pipeline: Pipeline, run_dir: Path | str | None = None) -> Source:
    """What can be judged without the model, in a second or less. Raises ConfigError or InputError, with all problems.

    `run_dir` stands in for output.path; what a run wrote there itself is no input of it.
    """
    location = pipeline.output.path if run_dir is None else run_dir
    problems = _setting_problems(pipeline)
    try:
        own = _own_places(location)
        source = open_source(pipeline.input, lambda schema: _column_problems(pipeline, schema), own)
    except InputError as error:
        if not problems:
            raise
        problems.append(str(error))
    if problems:
        raise ConfigError("\n".join(problems))
    for single, seen in zip(pipeline.single, _examples(pipeline), strict=True):
        if single.evaluate is not None:
            try_on_first_row(single.evaluate, source, seen)
    return source


def _examples(pipeline: Pipeline) -> Iterator[dict[str, Any]]:
    """For each stage: what a row could have in its output columns, and in those of the stages before."""
    earlier: dict[str, Any] = {}
    stages = [stage.name for stage in pipeline.stages] or [pipeline.name]
    for stage, single in zip(stages, pipeline.single, strict=True):
        added = added_columns(single)
        example, names = example_row(added), stage_names(stage, added)
        yield {**earlier, **example}
        earlier |= {names[column]: value for column, value in example.items()}


def _own_places(run_dir: Path | str) -> tuple[str, ...]:
    """How the names of files in the run directory begin."""
    if is_on_store(run_dir):
        return (f"{name_of(run_dir)}/",)
    return tuple({os.path.join(path(run_dir), "") for path in (os.path.abspath, os.path.realpath)})


def find_model(pipeline: Pipeline, note: Callable[[str], None]) -> ResolvedModel:
    """Where the model lies; downloads it if need be. Raises ModelError."""
    model = resolve_model(pipeline.model.id, pipeline.model.revision, note=note)
    about_code = note_on_code(model)
    if about_code is not None:
        note(about_code)
    return model


def judge_model(
    pipeline: Pipeline, source: Source, model: ResolvedModel, adapters: tuple[Adapter, ...] = ()
) -> Prepared:
    """What depends on the model; imports torch, which takes seconds. Raises ModelError or ConfigError."""
    config = load_config(model)
    check_supported(config, pipeline.model.max_model_len)
    if adapters:
        _check_adapters(config, adapters)
    if pipeline.cluster.scheduler is None:
        _check_machine(pipeline, config)
    # Compiles the templates and reads the chat template: wrong ones are refused here, not row by row.
    tokenizer = load_tokenizer(model)
    for single in pipeline.single:
        PromptBuilder(single.prompt, tokenizer, single.model.max_model_len, single.sampling.max_tokens)
        if single.sampling.structured is not None:
            _check_structured(single.sampling.structured, tokenizer)
    return Prepared(pipeline, model, config, source, adapters)


def _check_adapters(config: Any, adapters: tuple[Adapter, ...]) -> None:
    """Against the model's shapes, without its weights."""
    import torch
    from transformers import AutoModelForCausalLM

    from batchpaged.models.lora import check_adapters

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    check_adapters(model, adapters)
    if model.get_input_embeddings().num_embeddings > MAX_TOKEN_ID:
        raise ModelError(f"model.adapters: the model has more than {MAX_TOKEN_ID} token ids, and with adapters it may not")


def _check_structured(structured: StructuredConfig, tokenizer: Any) -> None:
    """Whether llguidance takes the tokenizer, and the grammar with it."""
    from batchpaged.engine.grammar import Grammars, make_tokenizer

    try:
        view = make_tokenizer(tokenizer, len(tokenizer), frozenset())
    except Exception as error:  # written in Rust, with errors of all kinds
        raise ConfigError(
            f"sampling.structured: llguidance cannot use this model's tokenizer ({type(error).__name__}); leave it out"
        ) from error
    grammar = grammar_of(structured)
    if grammar is not None:
        try:
            Grammars(lambda: view, 1).start(grammar)
        except ValueError as error:
            raise ConfigError(f"sampling.structured{file_of(structured)}: cannot be followed with this model's tokenizer: {error}") from error


def _check_machine(pipeline: Pipeline, config: Any) -> None:
    """This one, where the workers will be."""
    from batchpaged.cluster.local import num_local_workers
    from batchpaged.engine.build import choose_device
    from batchpaged.models.kv_shape import kv_block_bytes

    engine = pipeline.engine
    device = choose_device(engine.device)
    check_attention(engine.attention, device)
    dtype = resolve_dtype(getattr(config, "dtype", None), pipeline.model.dtype, device)
    num_workers = num_local_workers(pipeline.cluster, engine.device)
    check_cache_sizes(engine, kv_block_bytes(config, engine, dtype), num_workers, device)


def _setting_problems(pipeline: Pipeline) -> list[str]:
    problems: list[str] = []
    known = metrics_in_report(pipeline), [stage.name for stage in pipeline.stages], lacking_figures(pipeline)
    problems += [line for gate in pipeline.gates for line in _problem(lambda: parse_gates([gate], *known))]
    problems += _problem(lambda: check_previous(pipeline))
    for single in pipeline.single:
        problems += _problem(lambda: grammar_of(single.sampling.structured))
        if single.evaluate is not None:
            problems += _problem(lambda: metrics_of(single.evaluate))
    if pipeline.cluster.scheduler is None:
        problems += _problem(lambda: _check_tiers(pipeline.engine, pipeline.cluster.workers))
    if pipeline.engine.device == "cpu":
        problems += _problem(lambda: check_attention(pipeline.engine.attention, "cpu"))
    return problems


def _check_tiers(engine: EngineConfig, workers: int | str) -> None:
    """Of workers on this machine, as far as it can be told without the model."""
    folder = engine.disk_cache_path
    if folder is not None and not os.path.isdir(folder):
        what = "is a file" if os.path.exists(folder) else "does not exist"
        raise ConfigError(f"engine.disk_cache_path: {os.path.abspath(folder)} {what}; it must be a folder on a fast local disk")
    check_room(engine, workers if isinstance(workers, int) else 1)


def metrics_in_report(pipeline: Pipeline) -> list[str]:
    """Names of all stages' metrics; one that several stages have goes by stage and name."""
    names = [metric_names(single.evaluate) for single in pipeline.single]
    if not pipeline.stages:
        return names[0]
    every = [name for of_stage in names for name in of_stage]
    return [
        name if every.count(name) == 1 else f"{stage.name}.{name}"
        for stage, of_stage in zip(pipeline.stages, names, strict=True)
        for name in of_stage
    ]


def lacking_figures(pipeline: Pipeline) -> dict[str, str]:
    """Figures of the report that would always be null, and which key would give them. A run has what one of its stages has."""
    names = [stage.name for stage in pipeline.stages]
    tiers = _lacking_tiers(pipeline.engine)
    lacking = tiers | {f"stages.{name}.{figure}": key for name in names for figure, key in tiers.items()}
    is_free = [single.sampling.structured is None for single in pipeline.single]
    prefixes = [f"stages.{name}." for name, is_one in zip(names, is_free, strict=False) if is_one]
    prefixes += [""] if all(is_free) else []
    lacking |= {prefix + figure: "sampling.structured" for prefix in prefixes for figure in STRUCTURED}
    return lacking if names else lacking | dict.fromkeys(EARLIER_STAGES, "stages")


def _lacking_tiers(engine: EngineConfig) -> dict[str, str]:
    if engine.host_cache is None:
        return dict.fromkeys(MEMORY_TIERS, "engine.host_cache")
    return dict.fromkeys(DISK_TIER, "engine.disk_cache") if engine.disk_cache is None else {}


def _column_problems(pipeline: Pipeline, schema: pa.Schema) -> list[str]:
    """Later stages see what those before them add."""
    if not pipeline.stages:
        return _problems_of_one(pipeline, schema)
    problems: list[str] = []
    for stage, single in zip(pipeline.stages, pipeline.single, strict=True):
        problems += [f"stage {stage.name}: {problem}" for problem in _problems_of_one(single, schema)]
        added = stage_fields(stage.name, added_columns(single))
        taken = next((field.name for field in added if field.name in schema.names), None)
        if taken is not None:
            return [*problems, f"stages: {stage.name} adds a column {taken!r}, which there is already; give it another name"]
        schema = pa.schema([*schema, *added])
    return problems


def _problems_of_one(pipeline: Pipeline, schema: pa.Schema) -> list[str]:
    more = [field for field in output_columns(pipeline.sampling) if field.name not in OUTPUT_COLUMNS.names]
    problems = describe_clashes(schema, pa.schema(more))
    problems += _problem(lambda: validate_prompt_columns(pipeline.prompt, schema))
    problems += _problem(lambda: check_adapter_column(pipeline.model, schema))
    problems += _problem(lambda: check_constraint_column(pipeline.sampling.structured, schema))
    for key in ("references", "contexts", "gold_contexts"):
        column = getattr(pipeline.evaluate, key, None)
        if column is not None:
            problems += _problem(lambda: _check_evaluate(f"evaluate.{key}", column, schema))
    return problems


def _check_evaluate(key: str, column: str, schema: pa.Schema) -> None:
    if column not in schema.names:
        raise InputError(f"{key}: {no_column(column, schema.names)}")
    check_references(column, schema.field(column).type, key)


def _problem(check: Callable[[], None]) -> list[str]:
    try:
        check()
    except RefusedError as error:
        return [str(error)]
    return []
