"""`evaluate`: how good completions and contexts are."""

import re
from collections.abc import Mapping
from typing import Annotated, Literal, get_args

from pydantic import BeforeValidator, Field, PlainSerializer

from batchpaged.config.section import Section, Text, tuple_of_any

AnswerMetric = Literal["exact_match", "f1", "rouge_l", "contains", "numeric_match", "mrr"]
_AT_K = r"^(recall|precision)_at_[1-9][0-9]{0,5}$"
MetricAtK = Annotated[str, Field(pattern=_AT_K, examples=["recall_at_5"])]
OwnMetric = Annotated[
    str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*$", examples=["my_metrics:overlap"])
]
Metric = AnswerMetric | MetricAtK | OwnMetric


def _check_name(name: object) -> object:
    """Raises ValueError for what is nearly right, where the list of all metrics would not say why."""
    at_k = re.match(r"(recall|precision)_at_", name) if isinstance(name, str) and not is_metric(name) else None
    if at_k:
        raise ValueError(f"must have a whole number of 1 or more at its end, at most 999999, as {at_k[0]}5")
    if isinstance(name, str) and re.search(r"[/\\].*:", name):
        raise ValueError('must be a string like "my_metrics:overlap", without a path; evaluate.metrics_folder names the folder of the module')
    return name


def _tuple_of_names(value: object) -> object:
    if isinstance(value, (list, tuple)) and not value:
        raise ValueError("must hold at least one metric, such as f1; leave evaluate.metrics out for the usual ones")
    return tuple_of_any(value)


Metrics = Annotated[
    tuple[Annotated[Metric, BeforeValidator(_check_name)], ...],
    BeforeValidator(_tuple_of_names, json_schema_input_type=Metric | Annotated[list[Metric], Field(min_length=1)]),
]
DEFAULT_METRICS = ("exact_match", "f1")


def is_metric(name: str) -> bool:
    """One that is there, not a user's own."""
    return name in get_args(AnswerMetric) or re.fullmatch(_AT_K, name) is not None


def _pairs_of(value: object) -> object:
    """A mapping -> (word, worth) pairs, which can be hashed. Raises ValueError where YAML has read a word as something else."""
    if not isinstance(value, Mapping):
        return value
    if any(isinstance(word, bool) for word in value):
        raise ValueError('must be texts with numbers; YAML reads yes, no, on and off as true and false; write them in quotes: {"yes": 1, "no": 0}')
    return tuple(value.items())


Verdicts = Annotated[
    tuple[tuple[Text, float], ...],
    Field(min_length=1),
    BeforeValidator(_pairs_of, json_schema_input_type=Annotated[dict[Text, float], Field(min_length=1)]),
    PlainSerializer(dict),
]


class JudgeConfig(Section):
    """A completion that is a verdict: one of these words, with which it begins."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", examples=["correctness"])] = Field(
        "correctness", description="Name of the metric in the report, such as correctness or faithfulness"
    )
    verdicts: Verdicts = Field(
        (("yes", 1.0), ("no", 0.0)),
        json_schema_extra={"default": {"yes": 1.0, "no": 0.0}},
        description="Word to what it is worth, usually 0 to 1; case does not matter"
    )


class EvaluateConfig(Section):
    """Compare completions with reference answers, and retrieved contexts with those that would have been right."""

    references: Text | None = Field(
        None, description="Column of reference answers: string or list of strings; metrics of answers need it"
    )
    metrics: Metrics = Field(
        DEFAULT_METRICS, description="Metrics of answers, of contexts, or your own as module:function; means over the rows"
    )
    contexts: Text | None = Field(
        None, description="Column of retrieved contexts, the best first: texts or ids; with gold_contexts"
    )
    gold_contexts: Text | None = Field(
        None, description="Column of the contexts that would have been right; with contexts, for recall_at_k, precision_at_k, mrr"
    )
    metrics_folder: Text = Field(
        ".", description="Folder of the modules that metrics name; by default that of the pipeline file; then the current one"
    )
    judge: JudgeConfig | None = Field(
        None, description="The completion is a verdict on something: its words, and what each is worth; null: it is an answer"
    )

    @property
    def specs(self) -> tuple[str, ...]:
        """The metrics beside the judge's. A verdict is no answer: without references the usual ones are not meant."""
        is_default = self.metrics == DEFAULT_METRICS
        return () if self.judge is not None and self.references is None and is_default else self.metrics
