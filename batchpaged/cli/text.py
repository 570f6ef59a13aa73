"""What the commands print, as lines: pure functions of what api.py gives back."""

import json
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from batchpaged.config.sizes import format_bytes
from batchpaged.report import formatting as fmt
from batchpaged.simulation.text import simulation_lines
from batchpaged.report.diagnosis import diagnosis_lines

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import RenderableType

    from batchpaged.api import Cleaning, Comparison, ModelInfo, ModelSize, PlanReport, RunStatus, StagePlan, Validation
    from batchpaged.plan_stages import OpenPlan

STATE_ADVICE = {
    "running": "at work",
    "interrupted": "the same `batchpaged run` goes on",
    "done": "finished",
    "not planned": "no unit has begun; the same `batchpaged run` goes on",
}


def schema_lines() -> list[str]:
    from batchpaged.config import pipeline_json_schema

    return json.dumps(pipeline_json_schema(), indent=2, ensure_ascii=False).splitlines()


def plan_lines(plan: "PlanReport | tuple[StagePlan, ...]") -> list[str]:
    return list(_stage_lines(plan)) if isinstance(plan, tuple) else _one_plan(plan)


def _stage_lines(stages: "tuple[StagePlan, ...]") -> Iterator[str]:
    for i, stage in enumerate(stages):
        yield from [""] * (i > 0)
        yield f"Stage {stage.name}, {i + 1} of {len(stages)}"
        yield ""
        yield from _open_plan(stage.plan) if hasattr(stage.plan, "uses") else _one_plan(stage.plan)


def _open_plan(plan: "OpenPlan") -> list[str]:
    failed = f", {fmt.count(plan.num_failed)} will fail whatever the stages before say" * bool(plan.num_failed)
    ceiling = 1 - plan.num_unique_tokens / plan.num_known_tokens if plan.num_known_tokens else None
    facts = [
        ("Rows", fmt.count(plan.num_rows) + failed),
        ("Not known yet", f"{', '.join(plan.uses)}, of a stage before: prompts are known up to where they use it"),
        ("Known tokens", f"about {fmt.count(plan.num_known_tokens)}, at the beginning of prompts"),
        ("Unique tokens", f"about {fmt.count(plan.num_unique_tokens)} of these"),
        ("Sharing", fmt.ABSENT if ceiling is None else f"{fmt.percent(ceiling)} of these can come from the cache"),
        ("Estimated time", f"not known yet; completions of at most {fmt.plural(plan.max_tokens, 'token')}"),
    ]
    return _aligned(facts)


def _one_plan(plan: "PlanReport") -> list[str]:
    summary = plan.summary
    facts = [
        ("Rows", _rows(plan)),
        ("Prompt tokens", fmt.count(summary.num_prompt_tokens)),
        ("Unique tokens", f"{fmt.count(summary.num_unique_tokens)}, which have to be computed"),
        ("Hit rate ceiling", _ceiling(summary.hit_rate_ceiling)),
        ("Prefix groups", fmt.count(summary.num_prefix_groups)),
        ("Longest prompt", _longest(summary)),
        ("Units", fmt.count(summary.num_units)),
        ("KV memory", _memory(plan.kv_bytes_needed, plan.kv_bytes_available)),
        ("Estimated time", _estimate(plan)),
    ]
    simulated = simulation_lines(plan.simulation) if plan.simulation else ()
    return [*_aligned(facts), *diagnosis_lines(plan.diagnosis), *_failed_lines(plan), *simulated]


def _rows(plan: "PlanReport") -> str:
    summary = plan.summary
    parts = [fmt.count(summary.num_rows), f"{fmt.count(summary.num_duplicates)} with a prompt another row has too"]
    if summary.num_truncated:
        parts.append(f"{fmt.count(summary.num_truncated)} truncated")
    if plan.num_failed_rows:
        parts.append(f"{fmt.count(plan.num_failed_rows)} will fail")
    return ", ".join(parts)


def _ceiling(ceiling: float | None) -> str:
    return fmt.ABSENT if ceiling is None else f"{fmt.percent(ceiling)} of prompt tokens can come from the cache"


def _longest(summary: object) -> str:
    if summary.longest_row_id is None:
        return fmt.ABSENT
    return f"{fmt.plural(summary.longest_prompt, 'token')}, row {summary.longest_row_id}"


def _memory(needed: int | None, available: int | None) -> str:
    if needed is None or available is None:
        return fmt.ABSENT
    scarce = "; sequences will wait for blocks" if needed > available else ""
    return f"{format_bytes(needed)} needed, {format_bytes(available)} available{scarce}"


def _estimate(plan: "PlanReport") -> str:
    note = f" ({plan.estimate_note})" if plan.estimate_note else ""
    seconds = plan.estimated_seconds
    if seconds is None:
        return f"{fmt.ABSENT}{note}"
    # what a step costs besides its arithmetic is not in the estimate, and would be most of so little
    inference = "under a second" if seconds < 1 else fmt.seconds(seconds)
    return f"{inference} of inference{note}, and some seconds to start and to end"


def _failed_lines(plan: "PlanReport") -> Iterator[str]:
    if not plan.num_failed_rows:
        return
    yield ""
    yield f"{fmt.plural(plan.num_failed_rows, 'row')} will fail:"
    yield from (f"  {row_id}: {reason}" for row_id, reason in plan.failed_rows)
    if plan.num_failed_rows > len(plan.failed_rows):
        yield f"  and {fmt.count(plan.num_failed_rows - len(plan.failed_rows))} more"


def validation_lines(file: str, validation: "Validation") -> list[str]:
    pipeline = validation.pipeline
    facts = [
        ("Pipeline", pipeline.name),
        ("Input", f"{fmt.plural(validation.num_rows, 'row')} in {fmt.plural(validation.num_files, 'file')}"),
        ("Model", f"{pipeline.model.id}, in {validation.model_path}"),
        ("Gates", ", ".join(pipeline.gates) or "none"),
        ("Run directory", pipeline.output.path),
    ]
    not_seen = f"No row was looked at: `batchpaged plan {file}` tokenises all of them, and says which will fail and why."
    return [f"{file} is valid", "", *_aligned(facts), "", not_seen]


def status_lines(status: "RunStatus") -> list[str]:
    facts = [
        ("Run", f"{status.name}  {status.run_id}"),
        ("State", f"{status.state}: {status.verdict or _advice(status)}"),
        *_stages_done(status.stages),
        ("Units", _share(status.num_units_done, status.num_units)),
        ("Rows", _share(status.num_rows_done, status.num_rows)),
        ("Started", _moment(status.started_at)),
        ("Last progress", _moment(status.updated_at)),
        ("Owner", status.owner or "none"),
    ]
    facts += [(stage.name, _stage_state(stage)) for stage in status.stages]
    return _aligned(facts)


def _advice(status: "RunStatus") -> str:
    is_begun = status.state == "interrupted" and status.num_units_done > 0
    return "finished units are kept; " * is_begun + STATE_ADVICE[status.state]


def _stages_done(stages: Sequence["RunStatus"]) -> list[tuple[str, str]]:
    return [("Stages", _share(sum(stage.state == "done" for stage in stages), len(stages)))] if stages else []


def _stage_state(stage: "RunStatus") -> str:
    return stage.state if stage.num_units is None else f"{stage.state}, units: {_share(stage.num_units_done, stage.num_units)}"


def _share(done: int | None, total: int | None) -> str:
    if not total:
        return f"{fmt.count(done)} done; the total is known once every stage is planned" if done else fmt.ABSENT
    return f"{fmt.count(done or 0)} of {fmt.count(total)} done ({fmt.percent((done or 0) / total)})"


def _moment(iso: str | None) -> str:
    return fmt.ABSENT if iso is None else fmt.moment(iso)


def summary_lines(report: dict, run_dir: "Path", location: str, width: int | None) -> list[str]:
    from batchpaged.report.terminal import render_summary

    return _rendered(render_summary(report, run_dir, location), width)


def comparison_lines(comparison: "Comparison", as_json: bool, width: int | None) -> list[str]:
    from batchpaged.past.compare_text import ComparisonView

    return _json_lines(comparison.result) if as_json else _rendered(ComparisonView(comparison.result), width)


def history_lines(records: Sequence[dict], form: str | None, width: int | None) -> list[str]:
    from batchpaged.past.history import to_csv
    from batchpaged.past.history_text import HistoryView

    if form == "json":
        return _json_lines({"runs": list(records)})
    return to_csv(records).splitlines() if form == "csv" else _rendered(HistoryView(records), width)


def _json_lines(value: object) -> list[str]:
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False).splitlines()


def _rendered(what: "RenderableType", width: int | None) -> list[str]:
    """Captured: rich would end the program with code 1 where the reader has gone."""
    from rich.console import Console

    console = Console(width=width)
    with console.capture() as capture:
        console.print(what)
    return [line.rstrip() for line in capture.get().splitlines()]


def cleaning_lines(cleaning: "Cleaning") -> list[str]:
    going = [decision for decision in cleaning.decisions if decision.goes]
    verb = "deleted" if cleaning.is_done else "would go"
    rows = [
        (str(d), verb if d.goes else "stays", format_bytes(d.num_bytes) if d.goes else "", d.reason)
        for d in cleaning.decisions
    ]
    total = f"{fmt.plural(len(going), 'directory').replace('directorys', 'directories')}, {format_bytes(sum(d.num_bytes for d in going))}"
    last = f"{total} {verb}" if cleaning.is_done or not going else f"{total} would go; nothing was deleted: add --yes"
    return [*(_columns(rows) if rows else []), *cleaning.errors, last]


def size_lines(size: "ModelSize", as_json: bool) -> list[str]:
    from batchpaged.sizing.text import size_facts, size_json

    return _json_lines(size_json(size)) if as_json else _aligned(list(size_facts(size)))


def model_lines(models: Iterable["ModelInfo"]) -> list[str]:
    rows = [("ALIAS", "SIZE", "WHERE", "NOTE")]
    for model in models:
        size = fmt.ABSENT if model.size_bytes is None else format_bytes(model.size_bytes)
        rows.append((model.alias, size, model.location or "not here yet", model.note))
    return _columns(rows)


def architecture_lines(architectures: Sequence[str]) -> list[str]:
    names = textwrap.wrap(", ".join(architectures), 96, break_on_hyphens=False)
    head = "model.id also takes a local folder or a Hugging Face hub id of one of these model types:"
    return ["", head, *(f"  {line}" for line in names)]


def _aligned(facts: Sequence[tuple[str, str]]) -> list[str]:
    width = max(len(label) for label, _ in facts)
    return [f"{label:<{width}}  {value}" for label, value in facts]


def _columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths)).rstrip() for row in rows]
