"""Two runs side by side: rows whose completions changed, metrics with confidence intervals, reuse, speed.

The result is plain JSON types; it holds row ids and never a prompt. Completions are in it only if they are asked for.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batchpaged.errors import InputError
from batchpaged.evaluation.answers import ANSWER_METRICS, DEFAULT_METRICS
from batchpaged.evaluation.intervals import estimate_mean
from batchpaged.past.output import OutputRows, read_output, read_scores, read_texts
from batchpaged.past.sides import Side, read_side
from batchpaged.report.gates import find_figure
from batchpaged.run.fingerprint import changes

NUM_IDS = 10  # of each kind, unless told otherwise
FIGURES = (
    "prefix_cache_hit_rate",
    "prefix_cache_hit_rate_ceiling",
    "reuse_efficiency",
    "rows.failed",
    "tokens.prompt",
    "tokens.completion",
    "throughput.rows_per_s",
    "throughput.prompt_tokens_per_s",
    "throughput.completion_tokens_per_s",
    "time.infer",
    "time.total",
    "gpu_cache_usage_perc.peak",
    "num_preemption",
)


@dataclass(frozen=True)
class Matched:
    """Rows of both runs. `a` and `b`: places of the rows that both have, in the order of `b`."""

    a: np.ndarray
    b: np.ndarray
    only_a: np.ndarray
    only_b: np.ndarray


def compare_runs(
    a: Path | str,
    b: Path | str,
    id_column: str | None = None,
    references: str | None = None,
    num_ids: int = NUM_IDS,
    with_text: bool = False,
) -> dict[str, Any]:
    """`a` is the run before, `b` the one after. Each is a run directory, an output folder or a report.json.

    `id_column` and `references` stand in for what the runs say of themselves; at most `num_ids` row ids of each kind are
    listed, with their completions if asked. Raises RunDirectoryError or InputError, also where no row is in both runs.
    """
    sides = read_side(a), read_side(b)
    result = {
        "a": _describe(sides[0]),
        "b": _describe(sides[1]),
        "settings": _changed_settings(*sides),
        "figures": _figures(*sides),
    }
    if sides[0].output is None or sides[1].output is None:
        return {**result, "rows": None, "ids": None, "texts": None, "metrics": _reported_metrics(*sides)}
    column = _common_id_column(sides, id_column)
    outputs = tuple(_read(side, column, references) for side in sides)
    matched = _match(*outputs)
    _refuse_without_common_rows(sides, column, matched)
    kinds = _kinds_of_rows(*outputs, matched)
    ids = {kind: [] if places is None else _ids(places, num_ids) for kind, places in kinds.items()}
    return {
        **result,
        "rows": _row_counts(*outputs, matched, kinds, column),
        "ids": ids,
        "texts": _texts(sides, column, ids["changed"]) if with_text else None,
        "metrics": _metrics(*outputs, matched),
    }


def _describe(side: Side) -> dict[str, str | None]:
    run = (side.report or {}).get("run", {})
    return {"path": side.name, **{key: run.get(key) for key in ("id", "name", "model", "device", "finished_at")}}


def _changed_settings(a: Side, b: Side) -> list[str]:
    """What of input, prompt, model and sampling differs; templates only by name."""
    return changes(a.info["identity"], b.info["identity"]) if a.info and b.info else []


def _figures(a: Side, b: Side) -> dict[str, dict[str, float | None]]:
    found = {}
    for name in FIGURES:
        before, after = (find_figure(name, side.report or {}) for side in (a, b))
        change = None if before is None or after is None else after - before
        found[name] = {"a": before, "b": after, "change": change}
    return found


# --- rows ---


def _common_id_column(sides: tuple[Side, Side], given: str | None) -> str | None:
    first, second = (given or side.id_column for side in sides)
    if first != second:
        names = " and ".join(f"column {name!r}" if name else "position" for name in (first, second))
        raise InputError(f"the runs tell their rows apart by {names}; give a column that both have with --id")
    return first


def _read(side: Side, id_column: str | None, references: str | None) -> OutputRows:
    """Scores of answers are computed again, so that other references can be given; all others were kept by the run: they may
    come from a user's own code, which a comparison does not run."""
    asked = set(side.evaluation) | (set(DEFAULT_METRICS) if references is not None else set())
    is_of_stages = "stages" in (side.report or {})  # what they answered stands in columns of their own
    metrics = [] if is_of_stages else [name for name in ANSWER_METRICS if name in asked]
    rows = read_output(side.output, id_column, references or side.references, metrics)
    kept = [name for name in side.evaluation if name not in metrics]
    scores = read_scores(side.scores, kept, len(rows)) if side.scores and kept else {}
    return replace(rows, scores={**rows.scores, **scores})


def _match(a: OutputRows, b: OutputRows) -> Matched:
    places = pc.index_in(b.ids, value_set=a.ids)  # of each row of b in a
    in_both = np.asarray(pc.is_valid(places))
    found = np.asarray(places.drop_null()).astype(np.int64)
    is_only_a = np.ones(len(a), dtype=bool)
    is_only_a[found] = False
    return Matched(found, np.flatnonzero(in_both), np.flatnonzero(is_only_a), np.flatnonzero(~in_both))


def _refuse_without_common_rows(sides: tuple[Side, Side], column: str | None, rows: Matched) -> None:
    """Where nothing can be matched, "no clear change" would be said of nothing."""
    if len(rows.b) == 0:
        which = f"no id of column {column!r}" if column else "no position of a row"
        raise InputError(
            f"{sides[0].name} and {sides[1].name} cannot be compared: {which} is in both; "
            "look whether the two have the same inputs, or name another column of ids with --id"
        )


def _kinds_of_rows(a: OutputRows, b: OutputRows, rows: Matched) -> dict[str, tuple[pa.Array, np.ndarray] | None]:
    """Kind -> (ids of a run, places of its rows); None where the outputs do not tell."""
    has_changed = a.completions[rows.a] != b.completions[rows.b]
    had_failed, has_failed = a.is_failed[rows.a], b.is_failed[rows.b]
    has_prompts = a.prompts is not None and b.prompts is not None
    same_prompt = a.prompts[rows.a] == b.prompts[rows.b] if has_prompts else None

    def of_b(chosen: np.ndarray) -> tuple[pa.Array, np.ndarray]:
        return b.ids, rows.b[chosen]

    return {
        "changed": of_b(has_changed),
        "changed_same_prompt": of_b(has_changed & same_prompt) if has_prompts else None,
        "prompt_changed": of_b(~same_prompt) if has_prompts else None,
        "newly_failed": of_b(has_failed & ~had_failed),
        "no_longer_failed": of_b(had_failed & ~has_failed),
        "only_a": (a.ids, rows.only_a),
        "only_b": (b.ids, rows.only_b),
    }


def _ids(kind: tuple[pa.Array, np.ndarray], most: int) -> list[str]:
    ids, places = kind
    return ids.take(pa.array(places[:most])).to_pylist()


def _row_counts(a: OutputRows, b: OutputRows, rows: Matched, kinds: dict, column: str | None) -> dict[str, Any]:
    counts = {kind: None if found is None else len(found[1]) for kind, found in kinds.items()}
    return {"matched_by": column, "a": len(a), "b": len(b), "both": len(rows.b), **counts}


def _texts(sides: tuple[Side, Side], column: str | None, ids: list[str]) -> dict[str, dict[str, str | None]]:
    before, after = (read_texts(side.output, column, set(ids)) for side in sides)
    return {key: {"a": before.get(key), "b": after.get(key)} for key in ids}


# --- metrics ---


def _metrics(a: OutputRows, b: OutputRows, rows: Matched) -> dict[str, dict[str, Any]]:
    names = dict.fromkeys([*a.scores, *b.scores])
    return {
        name: _metric(a.scores[name], b.scores[name], rows)
        if name in a.scores and name in b.scores
        else _of_one_side(*(_estimate(side.scores[name]) if name in side.scores else None for side in (a, b)))
        for name in names
    }


def _of_one_side(a: dict[str, Any] | None, b: dict[str, Any] | None) -> dict[str, Any]:
    """A metric that only one of the runs has scores of."""
    return {"a": a, "b": b, "change": None, "num_rows": None, "verdict": "only_a" if b is None else "only_b"}


def _estimate(scores: np.ndarray) -> dict[str, Any] | None:
    found = estimate_mean(scores[~np.isnan(scores)])
    return None if found is None else asdict(found)


def _metric(a: np.ndarray, b: np.ndarray, rows: Matched) -> dict[str, Any]:
    """Means over each run's rows with references; the difference row by row, over those that both have."""
    differences = b[rows.b] - a[rows.a]
    differences = differences[~np.isnan(differences)]
    change = estimate_mean(differences)
    verdict = "unclear" if change is None or not change.is_clear else "better" if change.mean > 0 else "worse"
    as_json = None if change is None else asdict(change)
    return {"a": _estimate(a), "b": _estimate(b), "change": as_json, "num_rows": len(differences), "verdict": verdict}


def _reported_metrics(a: Side, b: Side) -> dict[str, dict[str, Any]]:
    """Of reports alone: means with their intervals, and no verdict."""
    unknown = {"change": None, "num_rows": None, "verdict": "unclear"}
    found = {}
    for name in dict.fromkeys([*a.evaluation, *b.evaluation]):
        means = [_mean_alone(side, name) if name in side.evaluation else None for side in (a, b)]
        is_in_both = name in a.evaluation and name in b.evaluation
        found[name] = {"a": means[0], "b": means[1], **unknown} if is_in_both else _of_one_side(*means)
    return found


def _mean_alone(side: Side, name: str) -> dict[str, float | None] | None:
    mean = side.evaluation[name]
    details = ((side.report or {}).get("evaluation_details") or {}).get(name, {})
    return None if mean is None else {"mean": mean, "low": details.get("low"), "high": details.get("high")}
