"""Tasks of inference: start a worker's engine, compute a unit and commit it."""

from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from distributed import get_worker, secede

from batchpaged.cluster.current_engine import CurrentEngine
from batchpaged.cluster.engine_worker import EngineWorker
from batchpaged.cluster.gpu_claim import claim_gpu
from batchpaged.cluster.job import Job
from batchpaged.cluster.libraries import import_model
from batchpaged.cluster.serving import Serving, UnitOutcome, UnitRow
from batchpaged.cluster.turns import Turns
from batchpaged.cluster.unit_reuse import unit_reuse
from batchpaged.dataset.schema import output_columns
from batchpaged.engine.engine import Completion
from batchpaged.engine.sampling_params import SamplingParams
from batchpaged.planning.keys import mark
from batchpaged.planning.plan_file import read_unit
from batchpaged.run.failed_rows import read_kept
from batchpaged.run.unit_file import read_unit_facts, result_row, write_unit
from batchpaged.structured.grammar import grammar_of

_engine = CurrentEngine()  # of this process
_turns = Turns()


def start_engine(job: Job) -> None:
    """Load the model, so that it is there when the plan is. Raises ModelError."""
    engine_worker = _engine_worker(job)
    secede()  # the engine has a thread of its own; this one would only keep others from tokenising
    engine_worker.loaded.result()


def stop_engine(sitting: str) -> None:
    """Free what the sitting's engine holds in this process."""
    _engine.end(sitting)


def _engine_worker(job: Job) -> EngineWorker:
    engine_worker = _engine.of(job.engine, lambda: _make_engine_worker(job))
    engine_worker.serve(_serving(job))
    return engine_worker


def _serving(job: Job) -> Serving:
    params, worker = sampling_params(job), get_worker()
    return Serving(
        sitting=job.sitting,
        params=params,
        emit=lambda sample: worker.log_event(job.topic, sample),
        fans_out=params.is_greedy and job.pipeline.engine.prefix_cache,
    )


def _make_engine_worker(job: Job) -> EngineWorker:
    import_model(job.model)
    from batchpaged.engine.build import build_engine, choose_device, default_num_threads

    worker = get_worker()
    pipeline = job.pipeline
    is_numbered = isinstance(worker.name, int) and pipeline.cluster.scheduler is None
    device = choose_device(pipeline.engine.device, partial(claim_gpu, first=worker.name if is_numbered else 0))
    num_threads = default_num_threads(job.num_workers_per_host)
    return EngineWorker(
        build=lambda: build_engine(
            job.model, pipeline.model, pipeline.engine, device, job.run_id, num_threads, job.adapters
        ),
        serving=_serving(job),
        name=str(worker.name),
        device=device,
        stall_seconds=pipeline.engine.stall_seconds,
    ).start()


def sampling_params(job: Job) -> SamplingParams:
    fields = job.pipeline.sampling.model_dump(exclude={"structured"})
    return SamplingParams(**{**fields, "stop_token_ids": frozenset(fields["stop_token_ids"])})


def infer_unit(job: Job, unit: int, num_units: int, after: int | None) -> dict[str, Any]:
    """Compute a unit and commit it, unless it is committed already. -> the unit's facts, without the long ones.

    `after`: the unit that was sent to this worker before it.
    """
    path = job.directory.unit_file(unit)
    with _turns.turn(job.sitting, unit, after):
        task = None if path.exists() else _begin(job, unit, num_units)
    secede()  # to wait for the engine takes no thread from other units
    facts = read_unit_facts(path) if task is None else _finish(job, unit, task)
    return {key: value for key, value in facts.items() if key not in ("timeline", "earlier")}


@dataclass(frozen=True)
class _UnitTask:
    prompts: list[dict[str, Any]]  # of the plan, all rows of the unit
    outcome: "Future[UnitOutcome] | None"  # None where no row has a prompt
    before: list[int] | None  # the row before the unit in planned order, as `_marked`
    kept: dict[int, dict[str, Any]]  # rows computed earlier that need not be computed again, by ordinal
    earlier: list[dict[str, Any]]  # facts of those who computed them

    def is_computed(self, prompt: dict[str, Any]) -> bool:
        return prompt["token_ids"] is not None and prompt["ordinal"] not in self.kept


def _begin(job: Job, unit: int, num_units: int) -> _UnitTask:
    """Give the unit to the engine."""
    prompts = read_unit(job.directory.path, unit).to_pylist()
    task = _UnitTask(prompts, None, None, *read_kept(job.directory.retry_file(unit)))
    grammar = grammar_of(job.pipeline.sampling.structured)
    rows = [_unit_row(job, prompt, grammar) for prompt in prompts if task.is_computed(prompt)]
    if not rows:
        return task
    after = _after(job, unit, num_units, prompts[-1]["adapter"])
    return replace(task, outcome=_engine_worker(job).submit(rows, after, unit), before=_before(job, unit))


def _unit_row(job: Job, prompt: dict[str, Any], grammar: str | None) -> UnitRow:
    """`grammar`: of all rows, unless each has its own or none."""
    adapter = None if prompt["adapter"] is None else job.adapters[prompt["adapter"]].identity
    return UnitRow(prompt["token_ids"], prompt["row_id"], prompt["grammar"] or grammar, adapter)


def _before(job: Job, unit: int) -> list[int] | None:
    """The row before the unit in planned order, as `_marked`; None where there is none."""
    if unit == 0:
        return None
    rows = read_unit(job.directory.path, unit - 1)
    return _marked(rows.slice(len(rows) - 1).to_pylist()[0])


def _after(job: Job, unit: int, num_units: int, adapter: int | None) -> list[int] | None:
    """Token ids of the row after the unit in planned order; None where there is none, or it has another adapter."""
    if unit + 1 == num_units:
        return None
    row = read_unit(job.directory.path, unit + 1).slice(0, 1).to_pylist()[0]
    return row["token_ids"] if row["adapter"] == adapter else None


def _finish(job: Job, unit: int, task: _UnitTask) -> dict[str, Any]:
    """Wait for the engine, and commit. -> the unit's facts"""
    outcomes, facts = _outcomes(task)
    pairs = zip((_marked(prompt) for prompt in task.prompts), outcomes, strict=True)
    facts |= {"unit": unit, "sitting": job.sitting, "start": job.engine, "num_rows": len(task.prompts)}
    facts["completions"] = _completion_sum(outcomes)
    facts["num_refused"] = sum(isinstance(outcome, str) for outcome in outcomes)
    is_judged = job.pipeline.sampling.prompt_logprobs is not None
    facts["reuse"] = unit_reuse(pairs, task.before, job.pipeline.engine.prefix_cache, is_judged)
    facts |= {"earlier": task.earlier} if task.earlier else {}
    job.check_is_current()
    columns = output_columns(job.pipeline.sampling)
    rows = [
        task.kept.get(p["ordinal"]) or result_row(p, o, columns) for p, o in zip(task.prompts, outcomes, strict=True)
    ]
    write_unit(job.directory.unit_file(unit), rows, facts, columns)
    job.directory.retry_file(unit).unlink(missing_ok=True)
    return facts


def _marked(prompt: dict[str, Any]) -> list[int] | None:
    """Token ids of which those of different adapters have nothing in common."""
    return prompt["token_ids"] and mark(prompt["token_ids"], prompt["adapter"])


def _outcomes(task: _UnitTask) -> tuple[list[Completion | str | None], dict[str, Any]]:
    """-> what became of each prompt, None where there was nothing to compute; the engine's facts."""
    if task.outcome is None:
        return [None] * len(task.prompts), {}
    outcome = task.outcome.result()
    computed = iter(outcome.rows)
    outcomes = [next(computed) if task.is_computed(prompt) else None for prompt in task.prompts]
    return outcomes, dict(outcome.facts)


def _completion_sum(outcomes: list[Completion | str | None]) -> dict[str, int]:
    """As CompletionSum."""
    lengths = [outcome.num_generated_tokens for outcome in outcomes if isinstance(outcome, Completion)]
    return {"num_rows": len(lengths), "num_tokens": sum(lengths)}
