"""What a program calls. The command line and batchpaged's public names are thin layers over this module."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from batchpaged.config import Pipeline
from batchpaged.config.elsewhere import hinting
from batchpaged.errors import RunDirectoryError
from batchpaged.models.info import ModelInfo, list_models
from batchpaged.models.support import supported_architectures
from batchpaged.past.clean import Decision, Rules, delete_all, plan_cleaning
from batchpaged.past.clean_store import delete_all_of_store, plan_cleaning_of_store
from batchpaged.past.compare import compare_runs
from batchpaged.past.history import read_history, write_history_page
from batchpaged.past.runs import read_report
from batchpaged.plan_stages import StagePlan, plan_stages
from batchpaged.planner import PlanReport, plan_prepared
from batchpaged.planning.plan_file import has_plan, read_plan
from batchpaged.prepare import PipelineLike, first_stage, prepare, read_pipeline
from batchpaged.report.metrics import describe_verdict
from batchpaged.run.directory import RunDirectory
from batchpaged.run.outline import check_free, outline
from batchpaged.run.progress import NullReporter, ProgressReporter
from batchpaged.run.stopping import StopRequest
from batchpaged.run.store import is_on_store, open_store
from batchpaged.runner import RunResult, run_pipeline
from batchpaged.simulation.request import SimulationRequest
from batchpaged.sizing.size import ModelSize, size_model

if TYPE_CHECKING:
    from batchpaged.bench import BenchResult

SAMPLE_PIPELINE = "pipelines/rag_eval.yaml"


@dataclass(frozen=True)
class Validation:
    pipeline: Pipeline
    num_rows: int
    num_files: int
    model_path: Path


@dataclass(frozen=True)
class Comparison:
    result: dict[str, Any]  # as `batchpaged compare --json` prints it

    @property
    def has_changes(self) -> bool:
        """A completion changed, or a row is in one run only; of reports alone, nobody knows."""
        rows = self.result["rows"] or {}
        return any(rows.get(kind) for kind in ("changed", "only_a", "only_b"))

    @property
    def is_judged(self) -> bool:
        """A metric was compared row by row."""
        return any(metric["change"] is not None for metric in self.result["metrics"].values())

    @property
    def is_worse(self) -> bool:
        """A metric fell, and its interval leaves zero out."""
        return any(metric["verdict"] == "worse" for metric in self.result["metrics"].values())


@dataclass(frozen=True)
class Cleaning:
    decisions: Sequence[Decision]
    errors: Sequence[str]  # what could not be deleted, and why
    is_done: bool  # else it was a dry run


@dataclass(frozen=True)
class RunStatus:
    name: str
    run_id: str
    state: Literal["running", "interrupted", "done", "not planned", "not begun"]  # the last of a stage alone
    num_units: int | None  # None until everything is planned
    num_units_done: int
    num_rows: int | None  # each as often as there are stages
    num_rows_done: int
    started_at: str | None  # ISO-8601, UTC
    updated_at: str | None
    owner: str | None
    stages: tuple["RunStatus", ...] = ()  # of a run of several stages, all of them
    verdict: str | None = None  # of a run that is done: what went wrong, in words; None: nothing did


def run(
    pipeline: PipelineLike,
    *,
    overrides: Sequence[str] = (),
    limit: int | None = None,
    run_dir: Path | str | None = None,
    fresh: bool = False,
    retry_failed: bool = False,
    reporter: ProgressReporter | None = None,
    stop: StopRequest | None = None,
) -> RunResult:
    """Run a pipeline (a file's path, a mapping or a Pipeline), or go on with it where it was interrupted.

    `overrides` are "key.sub=value" strings; `run_dir` stands in for output.path; `fresh` discards an earlier run's files;
    `retry_failed` computes failed rows of finished units again, and no others.
    `stop`, once set, lets the run finish the units that are being computed, and end with StoppedError if any are left.
    Raises RefusedError before any work if something is wrong, UnfinishedError if the run stopped before its end.
    """
    with hinting(pipeline, overrides):
        checked = read_pipeline(pipeline, overrides, limit)
        return run_pipeline(checked, reporter or NullReporter(), run_dir, fresh, retry_failed=retry_failed, stop=stop)


def plan(
    pipeline: PipelineLike,
    *,
    overrides: Sequence[str] = (),
    limit: int | None = None,
    simulate: SimulationRequest | None = None,
    reporter: ProgressReporter | None = None,
) -> PlanReport | tuple[StagePlan, ...]:
    """What a run would take: rows, tokens, sharing, memory, time. Computes no completion and writes nothing.

    With `simulate` also what it would come to on so many workers. Of a pipeline with stages: for each what can be known.
    """
    reporter = reporter or NullReporter()
    with hinting(pipeline, overrides):
        prepared = prepare(read_pipeline(pipeline, overrides, limit), reporter.note)
    if prepared.pipeline.stages:
        return plan_stages(prepared, reporter, simulate)
    return plan_prepared(prepared, reporter, simulate)


def validate(pipeline: PipelineLike, *, overrides: Sequence[str] = ()) -> Validation:
    """Check file, gates, run directory, input, columns, templates and model. Raises RefusedError."""
    with hinting(pipeline, overrides):
        checked = read_pipeline(pipeline, overrides, None)
        check_free(checked.output.path)
        prepared = prepare(checked, NullReporter().note)
    source = prepared.source
    return Validation(prepared.pipeline, source.num_rows, len(source.files), prepared.model.path)


def status(run_dir: Path | str) -> RunStatus:
    """How far a run is, read from its directory alone. Raises RunDirectoryError."""
    with outline(run_dir) as (directory, owner):
        return _status(directory, owner)


def _status(directory: RunDirectory, owner: Mapping[str, Any] | None) -> RunStatus:
    info = directory.info()
    summary, units = read_plan(directory.path) if has_plan(directory.path) else (None, [])
    done = [unit for unit in units if directory.is_unit_done(unit.index)]
    status = RunStatus(
        name=info["name"],
        run_id=info["run_id"],
        state=_state(directory, owner is not None, summary is not None),
        num_units=summary.num_units if summary else None,
        num_units_done=len(done),
        num_rows=summary.num_rows if summary else None,
        num_rows_done=sum(unit.end - unit.start for unit in done),
        started_at=info["started_at"],
        updated_at=directory.updated_at(),
        verdict=_verdict(directory) if owner is None and directory.is_finished else None,
        owner=f"process {owner['pid']} on {owner['host']} since {owner['started_at']}" if owner else None,
    )
    if not (directory.path / "stages").is_dir():  # each stage's own directory has none either
        return status
    names = info["identity"]["pipeline"]["stages"]["(order)"]
    return _of_stages(status, tuple(_of_stage(directory, name, status) for name in names))


def _of_stage(directory: RunDirectory, name: str, whole: RunStatus) -> RunStatus:
    stage = directory.of_stage(name)
    if stage.exists:
        return _status(stage, stage.owner())
    return RunStatus(f"{whole.name}.{name}", "", "not begun", None, 0, None, 0, None, None, None)


def _verdict(directory: RunDirectory) -> str | None:
    """A report that cannot be read keeps nobody from being told how far the run is."""
    try:
        return describe_verdict(read_report(directory.report))
    except RunDirectoryError as error:
        return str(error)


def _of_stages(status: RunStatus, stages: tuple[RunStatus, ...]) -> RunStatus:
    """Of the whole run: its stages together. Every row goes through each of them."""
    state = "interrupted" if status.state == "not planned" else status.state
    moments = [stage.updated_at for stage in (status, *stages) if stage.updated_at]
    num_units, num_rows = [stage.num_units for stage in stages], stages[0].num_rows
    return replace(
        status,
        state=state,
        num_units=None if None in num_units else sum(num_units),
        num_units_done=sum(stage.num_units_done for stage in stages),
        num_rows=None if num_rows is None else num_rows * len(stages),
        num_rows_done=sum(stage.num_rows_done for stage in stages),
        updated_at=max(moments, default=None),
        stages=stages,
    )


def _state(
    directory: RunDirectory, is_owned: bool, is_planned: bool
) -> Literal["running", "interrupted", "done", "not planned"]:
    if is_owned:
        return "running"
    if directory.is_finished:
        return "done"
    return "interrupted" if is_planned else "not planned"


def compare(
    a: Path | str,
    b: Path | str,
    *,
    id_column: str | None = None,
    references: str | None = None,
    num_ids: int = 10,
    with_text: bool = False,
) -> Comparison:
    """Run `a` and the later run `b`, each a run directory, an output folder or a report.json: see Comparison.

    Raises RunDirectoryError or InputError.
    """
    return Comparison(compare_runs(a, b, id_column, references, num_ids, with_text))


def history(
    folder: Path | str, *, name: str | None = None, last: int | None = None, html: Path | str | None = None
) -> list[dict[str, Any]]:
    """A record for each run whose directory lies in the folder, the oldest first; `html` is a page to write.

    Raises RunDirectoryError, also where the page cannot be written.
    """
    records = read_history(folder, name, last)
    if html is not None:
        write_history_page(records, folder, Path(html))
    return records


def clean(
    folder: Path | str, *, keep: int = 0, min_age: float = 0.0, keep_results: bool = False, delete: bool = False
) -> Cleaning:
    """Old run directories: what goes and what stays, and with `delete` it goes. `min_age` in seconds.

    Raises RunDirectoryError.
    """
    rules = Rules(keep, min_age, keep_results)
    if is_on_store(folder):
        store = open_store(str(folder))
        decisions = plan_cleaning_of_store(store, rules)
        return Cleaning(decisions, delete_all_of_store(store, decisions, rules) if delete else (), delete)
    decisions = plan_cleaning(folder, rules)
    return Cleaning(decisions, delete_all(decisions, rules) if delete else (), delete)


def models() -> tuple[ModelInfo, ...]:
    """The model aliases and where each is on this machine."""
    return list_models()


def size(model: Path | str, **options: Any) -> ModelSize:
    """What a model takes of a GPU's memory; options as of `size_model`. Raises ModelError or ConfigError."""
    return size_model(model, **options)


def bench(
    pipeline: PipelineLike | None = None,
    *,
    max_tokens: int = 32,
    limit: int | None = None,
    reporter: ProgressReporter | None = None,
) -> "BenchResult":
    """Time the engine alone on a pipeline's prompts, every completion forced to `max_tokens` tokens."""
    from batchpaged.bench import bench_prepared  # torch, which takes seconds to import

    reporter = reporter or NullReporter()
    overrides = [f"sampling.max_tokens={max_tokens}"]
    prepared = first_stage(prepare(read_pipeline(pipeline or SAMPLE_PIPELINE, overrides, limit), reporter.note))
    return bench_prepared(prepared, max_tokens, reporter)
