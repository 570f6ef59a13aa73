"""metrics.prom: the report for node_exporter's textfile collector.

Point `--collector.textfile.directory` at a folder and copy or link the file there; it is replaced in one step, as the
collector requires. A figure the run does not have is left out, never written as zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from batchpaged.atomic import write_text

Sample = tuple[dict[str, str], float | None]  # labels beyond name and run_id, value


@dataclass(frozen=True)
class Family:
    """All samples of one metric."""

    name: str  # without the batchpaged_ prefix
    help: str
    samples: list[Sample]
    kind: str = "gauge"


def write_prometheus(report: dict[str, Any], path: Path | str) -> Path:
    """Writes the metrics atomically, for everyone to read, since the collector is another user; returns their path."""
    path = Path(path)
    write_text(path, to_prometheus(report), mode=0o644)
    return path


def to_prometheus(report: dict[str, Any]) -> str:
    common = {"name": report["run"]["name"], "run_id": report["run"]["id"]}
    return "".join(f"{line}\n" for family in _families(report) for line in _lines(family, common))


def _lines(family: Family, common: dict[str, str]) -> Iterator[str]:
    """Nothing at all for a family without values."""
    samples = [(labels, value) for labels, value in family.samples if value is not None]
    if not samples:
        return
    yield f"# HELP batchpaged_{family.name} {family.help}"
    yield f"# TYPE batchpaged_{family.name} {family.kind}"
    for labels, value in samples:
        pairs = ",".join(f'{key}="{_escape(text)}"' for key, text in {**common, **labels}.items())
        yield f"batchpaged_{family.name}{{{pairs}}} {_number(value)}"


def _families(report: dict[str, Any]) -> list[Family]:
    return [*_reuse(report), *_volume(report), *_outcome(report)]


def _reuse(report: dict[str, Any]) -> list[Family]:
    return [
        _single(report, "prefix_cache_hit_rate", "Share of prompt tokens that came from the prefix cache, 0 to 1."),
        _single(report, "prefix_cache_hit_rate_ceiling", "Highest hit rate this data set allows, 0 to 1."),
        _single(report, "reuse_efficiency", "Share of the reusable prompt tokens that were reused, 0 to 1."),
        Family(
            "gpu_cache_usage_perc",
            "Share of the block pool in use, 0 to 1, on any device.",
            _by_key(report["gpu_cache_usage_perc"], "stat"),
        ),
        Family(
            "num_preemption_total",
            "Sequences that lost their blocks and were computed again.",
            [({}, report["num_preemption"])],
            kind="counter",
        ),
        Family(
            "earlier_stage_tokens",
            "Prompt tokens of earlier stages that were in the cache, or no more.",
            _by_key({key.removesuffix("_tokens"): n for key, n in (report["earlier_stages"] or {}).items()}, "kind"),
        ),
        Family("missed_tokens", "Tokens computed, by why the cache did not serve them.", _by_key(report["misses"], "cause")),
    ]


def _volume(report: dict[str, Any]) -> list[Family]:
    throughput = dict(report["throughput"])
    rows_per_s = throughput.pop("rows_per_s")
    tokens_per_s = {key.removesuffix("_tokens_per_s"): value for key, value in throughput.items()}
    return [
        Family("rows", "Rows of the data set, by outcome.", _by_key(report["rows"], "status")),
        Family("tokens", "Tokens of the whole run, by kind.", _by_key(report["tokens"], "kind")),
        Family("rows_per_second", "Rows completed per second of inference.", [({}, rows_per_s)]),
        Family("tokens_per_second", "Tokens per second of inference, by kind.", _by_key(tokens_per_s, "kind")),
        Family("time_seconds", "Time by stage.", _by_key(report["time"], "stage")),
        _single(report, "avg_sequence_length", "Mean of prompt and completion tokens per completed row."),
    ]


def _outcome(report: dict[str, Any]) -> list[Family]:
    gates = [({"gate": gate["gate"]}, float(gate["passed"])) for gate in report["gates"]]
    return [
        Family("evaluation", "Answer metrics.", _by_key(report["evaluation"] or {}, "metric")),
        Family("gate_passed", "1 where the gate passed, 0 where it failed.", gates),
        Family(
            "last_finished_timestamp_seconds",
            "When the run finished, in seconds since 1970.",
            [({}, _timestamp(report["run"]["finished_at"]))],
        ),
    ]


def _single(report: dict[str, Any], name: str, help_text: str) -> Family:
    return Family(name, help_text, [({}, report[name])])


def _by_key(values: dict[str, float | None], label: str) -> list[Sample]:
    return [({label: key}, value) for key, value in values.items()]


def _timestamp(iso: str) -> float | None:
    try:
        return datetime.fromisoformat(iso.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else repr(float(value))


def _escape(text: str) -> str:
    """As the text format asks: backslash, double quote and line feed."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
