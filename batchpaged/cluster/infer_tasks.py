"""Tasks of inference: start a worker's engine, compute a unit and commit it."""

import threading
from typing import Any

from distributed import get_worker

from batchpaged.cluster.engine_worker import EngineWorker, UnitRow
from batchpaged.cluster.job import Job
from batchpaged.run.unit_file import result_row, write_unit
from batchpaged.engine.sampling_params import SamplingParams
from batchpaged.planning.plan_file import read_unit

_lock = threading.Lock()
_current: tuple[str, EngineWorker] | None = None  # of this process: (sitting, its engine)


def start_engine(job: Job) -> None:
    """Begin to load the model, so that it is there when the plan is."""
    _engine_worker(job)


def _engine_worker(job: Job) -> EngineWorker:
    """This process's engine for the sitting. A worker of a long-lived cluster drops the engine of an earlier run."""
    global _current
    with _lock:
        is_usable = _current is not None and _current[0] == job.sitting and _current[1].error is None
        if not is_usable:
            _current = None
            _current = job.sitting, _make_engine_worker(job)
        return _current[1]


def _make_engine_worker(job: Job) -> EngineWorker:
    from batchpaged.engine.build import build_engine, choose_device, default_num_threads

    worker = get_worker()
    index = worker.name if isinstance(worker.name, int) else 0
    pipeline = job.pipeline
    device = choose_device(pipeline.engine.device, index)
    num_threads = default_num_threads(job.num_workers)
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
    """Compute a unit and commit it, unless it is committed already. -> the unit's facts."""
    path = job.directory.unit_file(unit)
    if path.exists():
        return {"unit": unit, "num_rows": 0}
    prompts = read_unit(job.directory.path, unit).to_pylist()
    runnable = [prompt for prompt in prompts if prompt["token_ids"] is not None]
    outcomes, facts = [], {}
    if runnable:
        rows = [UnitRow(prompt["token_ids"], prompt["row_id"]) for prompt in runnable]
        outcome = _engine_worker(job).submit(rows).result()
        outcomes, facts = outcome.rows, outcome.facts
    by_ordinal = {prompt["ordinal"]: result for prompt, result in zip(runnable, outcomes, strict=True)}
    facts = {**facts, "unit": unit, "sitting": job.sitting, "num_rows": len(prompts)}
    write_unit(path, [result_row(prompt, by_ordinal.get(prompt["ordinal"])) for prompt in prompts], facts)
    return {key: value for key, value in facts.items() if key != "timeline"}
