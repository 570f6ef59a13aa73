"""Gates: one-line conditions on the report that decide the exit code.

    prefix_cache_hit_rate >= 0.8       a figure of report.json
    throughput.rows_per_s > 2          a figure inside an object, by its path
    failed_rows <= 0                   the same as rows.failed
    f1 >= 0.6                          a metric the pipeline's `evaluate` asks for
    evaluation_details.f1.low >= 0.55  the lower end of its interval
    misses.evicted <= 1000             tokens computed for a cause
    f1 >= previous - 0.02              against the same figure of the previous good run
    time.total <= previous * 1.5

They are read before any work, so that a misspelt one costs no night. A gate whose figure is null fails: nothing was
measured, so nothing was shown to be good. Where there is no previous figure there is no bound, and any value passes.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from batchpaged.config.evaluate import is_metric
from batchpaged.config.gates import FORM
from batchpaged.errors import ConfigError
from batchpaged.report.earlier_stages import why_rate_fell
from batchpaged.report.facts import MISS_CAUSES, STAGES
from batchpaged.spelling import nearest

ROW_COUNTS = ("total", "succeeded", "failed", "truncated", "deduplicated")
ALIASES = {f"{kind}_rows": f"rows.{kind}" for kind in ROW_COUNTS}
# Figures that only some pipelines have.
STRUCTURED = tuple(f"structured.{name}" for name in ("complete", "cut", "forced_tokens"))
EARLIER_STAGES = ("earlier_stages.cached_tokens", "earlier_stages.lost_tokens")
MEMORY_TIERS = tuple(
    f"memory_tiers.{name}"
    for name in (
        *(f"host.{figure}" for figure in ("blocks", "most_used", "saved")),
        *(f"disk.{figure}" for figure in ("blocks", "most_used", "written", "read")),
        *("blocks_loaded", "tokens_loaded", "blocks_dropped", "blocks_lost"),
        *(f"preemptions.{figure}" for figure in ("swapped", "recomputed")),
        *(f"seconds_per_block.{figure}" for figure in ("compute", "save", "load", "read")),
    )
)
DISK_TIER = tuple(name for name in MEMORY_TIERS if "disk" in name or name.endswith(".read"))
FIGURES = (
    *(f"rows.{kind}" for kind in ROW_COUNTS),
    *(f"tokens.{kind}" for kind in ("prompt", "unique", "prefilled", "cached", "recomputed", "completion")),
    "prefix_cache_hit_rate",
    "prefix_cache_hit_rate_ceiling",
    "reuse_efficiency",
    "gpu_cache_usage_perc.mean",
    "gpu_cache_usage_perc.peak",
    "num_preemption",
    "avg_sequence_length",
    "max_model_len",
    *(f"throughput.{name}_per_s" for name in ("rows", "prompt_tokens", "prefilled_tokens", "completion_tokens")),
    *(f"time.{stage}" for stage in (*STAGES, "total")),
    "finish_reasons.stop",
    "finish_reasons.length",
    *STRUCTURED,
    *EARLIER_STAGES,
    *MEMORY_TIERS,
    *(f"misses.{cause}" for cause in MISS_CAUSES),
)
COUNTED = "num_evaluated"

_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}
_GATE = re.compile(
    r"\s*(?P<figure>[A-Za-z_][A-Za-z0-9_.-]*)"
    r"\s*(?P<operator>>=|<=|==|!=|>|<)"
    r"\s*((?P<bound>[-+]?([0-9][0-9_]*(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?)"
    r"|previous(\s*(?P<change>[-+*])\s*(?P<by>([0-9][0-9_]*(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?))?)\s*"
)
_CHANGES: dict[str, Callable[[float, float], float]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}


@dataclass(frozen=True)
class Gate:
    """`figure operator bound`; figure as the pipeline file spells it."""

    figure: str
    operator: str
    number: float  # the bound, or by how much the previous figure is changed to give it
    text: str
    change: str | None = None  # one of + - *, where the bound comes from the previous run; None: the number is the bound

    @property
    def is_relative(self) -> bool:
        return self.change is not None

    def bound(self, previous: float | None) -> float | None:
        """None where there is nothing to compare with."""
        if self.change is None:
            return self.number
        return None if previous is None else _CHANGES[self.change](previous, self.number)

    def is_passed_by(self, value: float | None, previous: float | None = None) -> bool:
        bound = self.bound(previous)
        return value is not None and (bound is None or _OPERATORS[self.operator](value, bound))


def parse_gate(text: str) -> Gate:
    """Raises ConfigError when the text is not a condition; whether its figure exists is not looked at."""
    match = _GATE.fullmatch(text)
    if match is None:
        raise ConfigError(f"gates: {text!r} is not a condition; write {FORM}, with one of {' '.join(_OPERATORS)}")
    number = float((match["bound"] or match["by"] or "0").replace("_", ""))
    change = None if match["bound"] else match["change"] or "+"
    return Gate(match["figure"], match["operator"], number, text.strip(), change)


def parse_gates(
    texts: Iterable[str],
    metrics: Iterable[str] = (),
    stages: Iterable[str] = (),
    lacking: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Gate, ...]:
    """Gates whose figures all exist. Raises ConfigError.

    `metrics`: what the pipeline's `evaluate` computes. `lacking`: figures that would always be null, and the key of the pipeline
    file that would give them.
    """
    names, stages = set(metrics), tuple(stages)
    gates = tuple(map(parse_gate, texts))
    for gate in gates:
        if gate.figure in lacking:
            raise ConfigError(
                f"gates: {gate.text!r} asks for {gate.figure!r}, which only a run with `{lacking[gate.figure]}` has; "
                "add that, or leave the gate out"
            )
        _require_figure(gate, {*names, COUNTED} if names else names, stages)
    return gates


def check(text: str, report: dict[str, Any], previous: dict[str, Any] | None = None) -> dict[str, Any]:
    """One entry of the report's `gates`: {gate, value, passed}, `limit` where that left rows out, `previous` where the gate asks for
    that, and `note` where it is known why it failed.

    `previous` is the report of the previous good run.
    """
    gate = parse_gate(text)
    value, before = find_figure(gate.figure, report), find_figure(gate.figure, previous or {})
    limit = {"limit": report["limit"]} if report.get("limit") else {}
    entry = {"gate": gate.text, "value": value, "passed": gate.is_passed_by(value, before), **limit}
    entry |= {"previous": before} if gate.is_relative else {}
    note = None if entry["passed"] else why_rate_fell(gate.figure, report)
    return entry if note is None else {**entry, "note": note}


def find_figure(figure: str, report: dict[str, Any]) -> float | None:
    """The number at a path of the report, by alias or as an evaluation metric; None when there is none."""
    evaluation = report.get("evaluation") or {}
    if figure in evaluation:
        return evaluation[figure]
    value: Any = report
    for key in ALIASES.get(figure, figure).split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _details(metrics: set[str]) -> list[str]:
    """The ends of each metric's interval, and in how many rows it counts."""
    return [f"evaluation_details.{name}.{what}" for name in metrics - {COUNTED} if "." not in name for what in ("low", "high", "num_rows")]


def _require_figure(gate: Gate, metrics: set[str], stages: tuple[str, ...]) -> None:
    known = [*FIGURES, *ALIASES, *metrics, *(f"evaluation.{name}" for name in metrics), *_details(metrics)]
    known += [f"stages.{stage}.{figure}" for stage in stages for figure in FIGURES]
    if gate.figure in known:
        return
    meant = nearest(gate.figure, known)
    hint = f"; the nearest is {meant!r}." if meant else "; docs/pipeline-file.md lists the figures."
    raise ConfigError(
        f"gates: {gate.text!r} asks for {gate.figure!r}, which no report of this pipeline has{hint}" + _advice(gate.figure, metrics, stages)
    )


def _advice(figure: str, metrics: set[str], stages: tuple[str, ...]) -> str:
    """What the pipeline lacks for such a figure."""
    section, _, name = figure.partition(".")
    if section == "stages":
        return f" The pipeline's stages are {', '.join(stages)}." if stages else " The pipeline has no stages."
    if not metrics and (not name or section.startswith("evaluation")):
        return " Metrics such as f1 need `evaluate` in the pipeline file."
    return f" To have {figure}, add it to evaluate.metrics." if is_metric(figure) else ""
