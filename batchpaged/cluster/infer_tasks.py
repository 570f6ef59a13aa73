"""Tasks of inference: start a worker's engine, compute a unit and commit it."""

from typing import Any

from distributed import get_worker, secede

from batchpaged.cluster.current_engine import CurrentEngine
from batchpaged.cluster.engine_worker import EngineWorker, UnitRow
from batchpaged.cluster.job import Job
from batchpaged.cluster.libraries import import_model
from batchpaged.engine.engine import Completion
from batchpaged.engine.sampling_params import SamplingParams
from batchpaged.planning.plan_file import read_unit
from batchpaged.run.unit_file import read_unit_facts, result_row, write_unit

_engine = CurrentEngine()  # of this process


def start_engine(job: Job) -> None:
    """Load the model, so that it is there when the plan is. Raises ModelError."""
    engine_worker = _engine_worker(job)
    secede()  # the engine has a thread of its own; this one would only keep others from tokenising
    engine_worker.loaded.result()


def stop_engine(sitting: str) -> None:
    """Free what the sitting's engine holds in this process."""
    _engine.end(sitting)


def _engine_worker(job: Job) -> EngineWorker:
    return _engine.of(job.sitting, lambda: _make_engine_worker(job))


def _make_engine_worker(job: Job) -> EngineWorker:
    import_model(job.model)
    from batchpaged.engine.build import build_engine, choose_device, default_num_threads

    worker = get_worker()
    index = worker.name if isinstance(worker.name, int) else 0
    pipeline = job.pipeline
    device = choose_device(pipeline.engine.device, index)
    num_threads = default_num_threads(job.num_workers_per_host)
    return EngineWorker(
        build=lambda: build_engine(job.model, pipeline.model, pipeline.engine, device, job.run_id, num_threads),
        params=sampling_params(job),
        name=str(worker.name),
        device=device,
        emit=lambda sample: worker.log_event(job.topic, sample),
    ).start()


def sampling_params(job: Job) -> SamplingParams:
    fields = job.pipeline.sampling.model_dump(exclude={"n", "logprobs"})
    return SamplingParams(**{**fields, "stop_token_ids": frozenset(fields["stop_token_ids"])})


def infer_unit(job: Job, unit: int) -> dict[str, Any]:
    """Compute a unit and commit it, unless it is committed already. -> the unit's facts, without its timeline."""
    path = job.directory.unit_file(unit)
    if path.exists():
        facts = read_unit_facts(path)
    else:
        prompts = read_unit(job.directory.path, unit).to_pylist()
        outcomes, facts = _compute(job, prompts)
        facts = {**facts, "unit": unit, "sitting": job.sitting, "num_rows": len(prompts)}
        job.check_is_current()
        write_unit(path, [result_row(*pair) for pair in zip(prompts, outcomes, strict=True)], facts)
    return {key: value for key, value in facts.items() if key != "timeline"}


def _compute(job: Job, prompts: list[dict[str, Any]]) -> tuple[list[Completion | str | None], dict[str, Any]]:
    """-> what became of each prompt, None where there was nothing to compute; the engine's facts."""
    rows = [UnitRow(prompt["token_ids"], prompt["row_id"]) for prompt in prompts if prompt["token_ids"] is not None]
    if not rows:
        return [None] * len(prompts), {}
    outcome = _engine_worker(job).submit(rows).result()
    computed = iter(outcome.rows)
    return [None if prompt["token_ids"] is None else next(computed) for prompt in prompts], outcome.facts
