"""The pipeline file and its sections, the longer ones apart. A field's description is what editors show: one line, with the unit."""

import os
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from batchpaged.config.adapters import AdapterName, Adapters
from batchpaged.config.engine import EngineConfig
from batchpaged.config.evaluate import EvaluateConfig
from batchpaged.config.gates import GATE_PATTERN, check_gate
from batchpaged.config.rules import broken_rules, parts_of
from batchpaged.config.sampling import SamplingConfig
from batchpaged.config.section import AtLeastOne, Section, Text, tuple_of_any, tuple_of_list


def _check_run_dir(path: str) -> str:
    if "://" in path and not path.startswith("s3://"):
        raise ValueError("must be a folder on a local or mounted file system, or s3://bucket/folder")
    if "@" in path.partition("://")[2].partition("/")[0]:
        raise ValueError("must be s3://bucket/folder; credentials come from the environment, not from the URL")
    if path.startswith("s3:") and not path.startswith("s3://"):
        raise ValueError("must be s3://bucket/folder, with two slashes")
    if "\0" in path or not path.strip():
        raise ValueError("must be a name, not white space, without a null character")
    return os.path.expanduser(path)


Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$", examples=["rag_eval"])]
StageName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,49}$", examples=["answer"])]
Gate = Annotated[
    str,
    Field(examples=["prefix_cache_hit_rate >= 0.8"], json_schema_extra={"pattern": GATE_PATTERN}),
    AfterValidator(check_gate),
]
Paths = Annotated[Text | Annotated[tuple[Text, ...], Field(min_length=1)], BeforeValidator(tuple_of_list)]
Gates = Annotated[tuple[Gate, ...], BeforeValidator(tuple_of_any, json_schema_input_type=Gate | list[Gate])]


class InputConfig(Section):
    """Where the rows come from."""

    path: Paths = Field(
        description="Parquet file, folder, glob or list of them, or a Hugging Face dataset; local, s3://, gs://, hf://"
    )
    id_column: Text | None = Field(None, description="Column of unique row ids; null: a row's position is its id")
    limit: AtLeastOne | None = Field(None, description="Number of rows to read, from the first; null: all rows")


class PromptConfig(Section):
    """How a row becomes a prompt: exactly one of user, messages_column, text_column and token_ids_column."""

    system: str | None = Field(None, description="System message, a Jinja2 template over the row's columns; with user")
    user: Text | None = Field(None, description="User message, a Jinja2 template over the row's columns")
    messages_column: Text | None = Field(None, description="Column of chat messages, each with role and content")
    text_column: Text | None = Field(None, description="Column of prompt text")
    token_ids_column: Text | None = Field(None, description="Column of token ids, which are used as they are")
    chat_template: Text = Field(
        "auto", description="auto: the model's own; none: no chat template; else the path of a Jinja2 file"
    )
    allow_special_tokens: bool = Field(
        False, description="Whether special tokens written out in a row are control tokens; false: they are text"
    )
    reorder: Text | None = Field(
        None, description="List column whose documents are put, row by row, into the order that shares most; with user"
    )
    on_too_long: Literal["error", "truncate_left", "truncate_right"] = Field(
        "error", description="A prompt too long for max_model_len: its row fails, or loses its first or last tokens"
    )


class ModelConfig(Section):
    """The language model."""

    id: Text = Field(description="Alias (`batchpaged models` lists them), local folder, or Hugging Face hub id")
    revision: Text | None = Field(None, description="Branch, tag or commit on the hub; null: the hub's default")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="Type of weights and activations; auto: float32 on a CPU, 16 bits on a GPU"
    )
    max_model_len: Annotated[int, Field(ge=2)] = Field(
        2048, description="Most tokens of a prompt and its completion together"
    )
    adapters: Adapters = Field(
        (), json_schema_extra={"default": {}}, description="LoRA adapters by name: folders as peft saves them"
    )
    adapter: AdapterName | None = Field(
        None, description="Name of the adapter that all rows use; null: none, or the row's own"
    )
    adapter_column: Text | None = Field(
        None, description="Column of adapter names, one per row; a row whose value is null uses the base model"
    )


class StageConfig(Section):
    """One of several generations over the same rows; its templates see what the stages before it said."""

    name: StageName = Field(description="Name of the stage, and of the column that later templates find its completion in")
    prompt: PromptConfig = Field(description="How a row becomes a prompt")
    sampling: SamplingConfig | None = Field(None, description="How the next token is chosen; null: the pipeline's sampling")
    evaluate: EvaluateConfig | None = Field(None, description="How good this stage's completions are; null: no evaluation")


Stages = Annotated[
    tuple[StageConfig, ...], BeforeValidator(tuple_of_list, json_schema_input_type=list[StageConfig])
]


class ClusterConfig(Section):
    """The Dask cluster that does the work."""

    scheduler: Text | None = Field(
        None, description="Address or scheduler file of a running Dask cluster; null: a local one for this run"
    )
    workers: Literal["auto"] | AtLeastOne = Field(
        "auto", description="Number of engine workers; auto: one per GPU, else one with all cores"
    )


class OutputConfig(Section):
    """Where everything is written."""

    path: Annotated[Text, AfterValidator(_check_run_dir)] = Field(
        description="Run directory: plan, finished units, output and report; a folder or s3://bucket/folder, made if missing"
    )


class Pipeline(Section):
    """A batchpaged pipeline: one file, one run."""

    name: Name = Field("pipeline", description="Name of the run in its report; by default that of the pipeline file")
    input: InputConfig = Field(description="Where the rows come from")
    prompt: PromptConfig | None = Field(None, description="How a row becomes a prompt; null: as each of the stages says")
    stages: Stages = Field((), description="Generations one after the other over the same rows; none: the one of prompt")
    model: ModelConfig = Field(description="The language model")
    engine: EngineConfig = Field(default_factory=EngineConfig, description="Speed and memory")
    sampling: SamplingConfig = Field(
        default_factory=SamplingConfig, description="How the next token is chosen, and when a completion ends"
    )
    evaluate: EvaluateConfig | None = Field(
        None, description="Compare completions and contexts with what would have been right; null: no evaluation"
    )
    gates: Gates = Field(
        (),
        description="Conditions on the report, `figure operator number` or `figure operator previous - number`; if one "
        "does not hold the exit code is 1",
    )
    previous: Text = Field(
        "auto",
        description="Run that gates with `previous` compare with: auto (the last good one of this name beside the run "
        "directory), none, or a run directory or its report.json",
    )
    max_failed_rows: Annotated[int, Field(ge=0)] | None = Field(
        None, description="Failed rows beyond which the run stops, unfinished, with exit code 3; null: it never does"
    )
    cluster: ClusterConfig = Field(default_factory=ClusterConfig, description="The Dask cluster that does the work")
    output: OutputConfig = Field(description="Where everything is written")

    @model_validator(mode="after")
    def _keeps_the_rules(self) -> "Pipeline":
        broken = [f"{key}: {message}" for key, message in broken_rules(self.value)]
        if broken:
            raise ValueError("; ".join(broken))
        return self

    def value(self, key: str) -> object:
        """The value at a dotted key, such as `engine.block_size`; None where its section is null."""
        found: object = self
        for part in parts_of(key):
            found = found[part] if isinstance(part, int) else getattr(found, part, None)
        return found

    def of_stage(self, index: int) -> "Pipeline":
        """The stage as a pipeline of its own, with the input and output of the whole."""
        stage = self.stages[index]
        own = {"prompt": stage.prompt, "sampling": stage.sampling or self.sampling, "evaluate": stage.evaluate}
        return self.model_copy(update={**own, "name": f"{self.name}.{stage.name}", "stages": (), "gates": ()})

    @property
    def single(self) -> tuple["Pipeline", ...]:
        """The pipeline of each stage; of one without stages, itself."""
        return tuple(map(self.of_stage, range(len(self.stages)))) or (self,)
