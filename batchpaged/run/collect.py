"""From a run directory whose units are all there to the facts of its report."""

import importlib.metadata
import json
import platform
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from batchpaged.atomic import write_text
from batchpaged.config import Pipeline
from batchpaged.evaluation.pipeline import Evaluation, evaluate_output
from batchpaged.planning.plan_file import read_plan
from batchpaged.planning.summary import PlanSummary
from batchpaged.report.facts import ROWS_SCHEMA, TIMELINE_SCHEMA, EngineStats, GroupStats, PlanFacts, RunFacts, TierStats
from batchpaged.run.directory import RunDirectory
from batchpaged.run.earlier_stages import earlier_stages
from batchpaged.run.failed_rows import all_facts
from batchpaged.run.misses import lost_tokens
from batchpaged.run.unit_file import last_of_each_session, read_unit_facts

PACKAGES = ("batchpaged", "torch", "transformers", "tokenizers", "llguidance", "pyarrow", "dask", "distributed")


@dataclass(frozen=True)
class Sitting:
    """One start of the run that came to its end: seconds per stage, as it measured them itself."""

    seconds: dict[str, float]

    def write(self, folder: Path, name: str) -> None:
        write_text(folder / f"{name}.json", json.dumps(self.seconds))


def collect_facts(
    directory: RunDirectory,
    pipeline: Pipeline,
    summary: PlanSummary,
    previous: dict[str, Any] | None = None,
    num_rows_left_out: int = 0,
    before: Sequence[RunDirectory] | None = None,
) -> RunFacts:
    """Reads every unit's results (no completions) and facts, and the output for the evaluation.

    `previous`: report of the previous good run, if gates compare with it. `before`: of a stage, those before it.
    """
    info = directory.info()
    evaluation = evaluate_run(directory, pipeline)
    computed = _computed_units(directory, summary)
    return RunFacts(
        run_id=info["run_id"],
        name=info["name"],
        fingerprint=info["fingerprint"],
        model=pipeline.model.id,
        device=", ".join(sorted({unit["device"] for unit in computed})) or "none",
        versions=versions(),
        started_at=info["started_at"],
        finished_at=directory.finished_at(),
        plan=_plan_facts(summary),
        rows=_rows([directory.unit_file(unit) for unit in range(summary.num_units)]),
        engines=tuple(_engine_stats(last) for last in last_of_each_session(computed)),
        timeline=_timeline(computed),
        times=_times(directory.sittings, computed),
        evaluation=evaluation and evaluation.values,
        evaluation_details=evaluation and evaluation.details,
        gates=pipeline.gates,
        max_model_len=pipeline.model.max_model_len,
        num_deduplicated=sum(unit["num_deduplicated"] for unit in computed),
        lost_tokens=lost_tokens(computed),
        is_structured=pipeline.sampling.structured is not None,
        references=pipeline.evaluate.references if pipeline.evaluate else None,
        num_rows_left_out=num_rows_left_out,
        earlier_stages=None if before is None else earlier_stages(computed, _units_of(before)),
        previous=previous,
    )


def _computed_units(directory: RunDirectory, summary: PlanSummary) -> list[dict[str, Any]]:
    """Facts of the units that an engine has computed."""
    units = all_facts([read_unit_facts(directory.unit_file(unit)) for unit in range(summary.num_units)])
    return [unit for unit in units if "session" in unit]


def _units_of(stages: Sequence[RunDirectory]) -> list[dict[str, Any]]:
    return [unit for stage in stages for unit in _computed_units(stage, read_plan(stage.path)[0])]


def versions() -> dict[str, str]:
    return {"python": platform.python_version()} | {name: importlib.metadata.version(name) for name in PACKAGES}


def _plan_facts(summary: PlanSummary) -> PlanFacts:
    return PlanFacts(
        num_rows=summary.num_rows,
        num_prompt_tokens=summary.num_prompt_tokens,
        num_unique_tokens=summary.num_unique_tokens,
        num_duplicates=summary.num_duplicates,
        longest_prompt=summary.longest_prompt,
        num_units=summary.num_units,
    )


def _rows(units: Sequence[Path]) -> pa.Table:
    columns = ["ordinal", *ROWS_SCHEMA.names]
    tables = [pq.ParquetFile(path).read(columns) for path in units]
    rows = pa.concat_tables(tables).sort_by("ordinal").select(ROWS_SCHEMA.names)
    return rows.cast(pa.schema([_with_lists(field, rows.schema.field(field.name)) for field in ROWS_SCHEMA]))


def _with_lists(field: pa.Field, found: pa.Field) -> pa.Field:
    """A row with several completions has several of what ROWS_SCHEMA has once."""
    return field.with_type(pa.list_(field.type)) if pa.types.is_list(found.type) else field


def _engine_stats(facts: dict[str, Any]) -> EngineStats:
    names = EngineStats.__dataclass_fields__.keys() & facts.keys()
    values = {name: facts[name] for name in names}
    tiers = values.get("tiers")
    parts = {"groups": GroupStats(**values.get("groups", {})), "tiers": None if tiers is None else TierStats(**tiers)}
    return EngineStats(**values | parts)


def _spans(computed: Sequence[dict[str, Any]]) -> dict[str, tuple[float, float]]:
    """Per sitting, when inference began and when its last finished unit ended (time.time())."""
    times: dict[str, list[float]] = defaultdict(list)
    for unit in computed:
        times[unit["sitting"]] += [unit["started_at"], unit["finished_at"]]
    return {sitting: (min(t), max(t)) for sitting, t in times.items()}


def _timeline(computed: Sequence[dict[str, Any]]) -> pa.Table:
    """Sittings one after another, without the time between them."""
    offsets, elapsed = {}, 0.0
    for sitting, (start, end) in sorted(_spans(computed).items(), key=lambda item: item[1]):
        offsets[sitting] = elapsed - start
        elapsed += end - start
    samples = [
        {**sample, "t": max(0.0, sample["time"] + offsets[unit["sitting"]]), "worker": unit["session"]}
        for unit in computed
        for sample in unit["timeline"]
    ]
    return pa.Table.from_pylist(samples, schema=TIMELINE_SCHEMA)


def _times(sittings: Path, computed: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Seconds per stage over all sittings. Inference is taken from the units, so that it survives a killed sitting."""
    total: dict[str, float] = defaultdict(float)
    for path in sorted(sittings.glob("*.json")):
        for stage, seconds in json.loads(path.read_text()).items():
            total[stage] += seconds
    spans = _spans(computed)
    total["infer"] = sum(end - start for start, end in spans.values())
    total["load"] += sum(last["load_seconds"] for last in last_of_each_session(computed))
    # Sittings that were killed left no record of their own; of them inference is known.
    unrecorded = [span for sitting, span in spans.items() if not (sittings / f"{sitting}.json").exists()]
    total["total"] += sum(end - start for start, end in unrecorded)
    return dict(total)


def evaluate_run(directory: RunDirectory, pipeline: Pipeline) -> Evaluation | None:
    """None where the pipeline asks for none; writes the scores of each row beside the output."""
    if pipeline.evaluate is None:
        directory.scores.unlink(missing_ok=True)
        return None
    return evaluate_output(sorted(directory.output.glob("*.parquet")), pipeline.evaluate, directory.scores)
