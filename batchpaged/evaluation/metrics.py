"""The metrics that a pipeline asks for, as functions of one row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from batchpaged.errors import ConfigError
from batchpaged.evaluation.answers import ANSWER_METRICS
from batchpaged.evaluation.judge import verdict_worth
from batchpaged.evaluation.own_metrics import NotAScore, OwnMetric, as_score, load_own_metric
from batchpaged.evaluation.retrieval import retrieval_metric

if TYPE_CHECKING:
    from batchpaged.config import EvaluateConfig
    from batchpaged.config.evaluate import JudgeConfig

NUM_EVALUATED = "num_evaluated"


class MetricFailed(Exception):
    """A user's metric raised, or returned no number; says of what kind, and nothing of the row."""


class NoVerdict(Exception):
    """A judge's completion begins with none of the words that it was to choose from."""


@dataclass(frozen=True)
class EvaluatedRow:
    completion: str | None  # None: the row failed
    references: Sequence[str] = ()  # that say something
    contexts: Sequence[str] = ()
    gold_contexts: Sequence[str] = ()
    values: Mapping[str, Any] = field(default_factory=dict)  # column -> value, for a user's metric


@dataclass(frozen=True)
class Metric:
    name: str  # in the report
    score: Callable[[EvaluatedRow], float | None]  # None: the row does not count; raises MetricFailed
    needs: str  # what of a row: completion, references, contexts, or row


def metric_name(spec: str) -> str:
    """In report and gates: a user's metric goes by its function."""
    return spec.rpartition(":")[2]


def metric_names(evaluate: EvaluateConfig | None) -> list[str]:
    if evaluate is None:
        return []
    return [*map(metric_name, evaluate.specs), *([evaluate.judge.name] if evaluate.judge else [])]


def make_metrics(
    specs: Iterable[str], folder: str = ".", needs_references: bool = False, judge: JudgeConfig | None = None
) -> tuple[Metric, ...]:
    """`folder` is where users' modules lie; with `needs_references` their metrics count rows with references only.

    Raises ConfigError for one that is unknown, cannot be loaded, or has another's name.
    """
    metrics = tuple(_make(spec, folder, needs_references) for spec in specs)
    if judge is not None:
        metrics = (*metrics, Metric(judge.name, _of_verdicts(judge.verdicts), "completion"))
    names = [metric.name for metric in metrics]
    twice = next((name for name in names if names.count(name) > 1 or name == NUM_EVALUATED), None)
    if twice is not None:
        raise ConfigError(f"evaluate.metrics: {twice!r} would stand for two figures in the report; rename the function, or leave one out")
    return metrics


def _make(spec: str, folder: str, needs_references: bool) -> Metric:
    name = metric_name(spec)
    if ":" in spec:
        if name in ANSWER_METRICS or retrieval_metric(name) is not None:
            raise ConfigError(f"evaluate.metrics: {spec}: {name!r} is the name of a metric that is there; rename the function")
        return Metric(name, _of_own(load_own_metric(spec, folder), needs_references), "row")
    if spec in ANSWER_METRICS:
        return Metric(name, _of_answers(ANSWER_METRICS[spec]), "references")
    function = retrieval_metric(spec)
    if function is None:
        known = ", ".join([*ANSWER_METRICS, "recall_at_K, precision_at_K, mrr"])
        raise ConfigError(f"evaluate.metrics: {spec!r} is not one of {known}, or module:function")
    return Metric(name, _of_contexts(function), "contexts")


def _of_verdicts(verdicts: Sequence[tuple[str, float]]) -> Callable[[EvaluatedRow], float | None]:
    def score(row: EvaluatedRow) -> float | None:
        if row.completion is None:
            return 0.0
        worth = verdict_worth(row.completion, verdicts)
        if worth is None:
            raise NoVerdict
        return worth

    return score


def _of_answers(function: Callable[[str, Sequence[str]], float | None]) -> Callable[[EvaluatedRow], float | None]:
    return lambda row: score_answer(function, row.completion, row.references)


def score_answer(
    function: Callable[[str, Sequence[str]], float | None], completion: str | None, references: Sequence[str]
) -> float | None:
    """None where the row has no reference to compare with; a row without completion has 0."""
    score = function(completion or "", references) if references else None
    return score if completion is not None or score is None else 0.0


def _of_contexts(function: Callable[[Sequence[str], Sequence[str]], float]) -> Callable[[EvaluatedRow], float | None]:
    return lambda row: function(row.contexts, row.gold_contexts) if row.gold_contexts else None


def _of_own(function: OwnMetric, needs_references: bool) -> Callable[[EvaluatedRow], float | None]:
    def score(row: EvaluatedRow) -> float | None:
        if needs_references and not row.references:
            return None
        if row.completion is None:
            return 0.0
        try:
            return as_score(function(row.completion, list(row.references), row.values))
        except NotAScore as error:
            raise MetricFailed(str(error)) from None
        except (Exception, SystemExit) as error:  # sys.exit() in a metric ends its row, not the run
            raise MetricFailed(type(error).__name__) from error

    return score

