"""The timeline of all workers as a few evenly spaced intervals.

Workers sample their counters at moments of their own. Here every counter is interpolated at common edges and
differenced, so an interval's rate is tokens over seconds exactly, and downsampling loses no token.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

MOST_INTERVALS = 120  # on a chart 1,000 units wide; more is noise to the eye and weight on the page
COUNTERS = ("num_prefilled_tokens", "num_cached_tokens", "num_completion_tokens", "num_preemptions")
GAUGES = ("cache_usage", "num_running", "num_waiting")


@dataclass(frozen=True)
class WorkerSamples:
    """One worker's samples, by time. Every array has shape [num_samples]."""

    t: np.ndarray  # seconds, ascending
    values: dict[str, np.ndarray]  # column -> float64


@dataclass(frozen=True)
class Timeline:
    """All workers together over `num_intervals` equal intervals. Arrays have shape [num_intervals]."""

    edges: np.ndarray  # [num_intervals + 1] seconds
    prefilled_per_s: np.ndarray
    completion_per_s: np.ndarray
    usage_mean: np.ndarray  # over the workers that were alive, weighted by time
    usage_peak: np.ndarray  # highest single sample of any worker
    num_running: np.ndarray  # sum over workers of the mean in the interval
    num_waiting: np.ndarray
    num_preemptions: np.ndarray


def split_workers(timeline: pa.Table) -> tuple[WorkerSamples, ...]:
    """Samples of each worker in time order; samples that are not finite numbers are left out."""
    names = timeline["worker"].combine_chunks().dictionary_encode()
    codes = np.asarray(names.indices if isinstance(names, pa.Array) else names.combine_chunks().indices)
    columns = {name: _floats(timeline, name) for name in ("t", *COUNTERS, *GAUGES)}
    usable = np.logical_and.reduce([np.isfinite(values) for values in columns.values()])
    order = np.lexsort((columns["t"], codes))
    order = order[usable[order]]
    parts = np.split(order, np.flatnonzero(np.diff(codes[order])) + 1)
    return tuple(_worker(columns, part) for part in parts if len(part))


def usage_mean_and_peak(timeline: pa.Table) -> tuple[float | None, float | None]:
    """Block pool use over the run, 0 to 1: weighted by time over all workers, and the highest sample."""
    workers = split_workers(timeline)
    if not workers:
        return None, None
    seconds = sum(worker.t[-1] - worker.t[0] for worker in workers)
    samples = np.concatenate([worker.values["cache_usage"] for worker in workers])
    used = sum(_integral(worker, "cache_usage")[-1] for worker in workers)
    return float(used / seconds if seconds > 0 else samples.mean()), float(samples.max())


def summarise_timeline(timeline: pa.Table) -> Timeline | None:
    """None when there are too few samples to draw anything."""
    workers = split_workers(timeline)
    edges = _edges(workers)
    if edges is None:
        return None
    return Timeline(
        edges=edges,
        prefilled_per_s=_growth(workers, "num_prefilled_tokens", edges) / np.diff(edges),
        completion_per_s=_growth(workers, "num_completion_tokens", edges) / np.diff(edges),
        usage_mean=_mean_alive(workers, "cache_usage", edges),
        usage_peak=_peak(workers, "cache_usage", edges),
        num_running=_mean(workers, "num_running", edges),
        num_waiting=_mean(workers, "num_waiting", edges),
        num_preemptions=_growth(workers, "num_preemptions", edges),
    )


def _floats(timeline: pa.Table, name: str) -> np.ndarray:
    return timeline[name].cast(pa.float64()).to_numpy()


def _worker(columns: dict[str, np.ndarray], part: np.ndarray) -> WorkerSamples:
    values = {name: columns[name][part] for name in (*COUNTERS, *GAUGES)}
    return WorkerSamples(columns["t"][part], {**values, **{name: _without_resets(values[name]) for name in COUNTERS}})


def _without_resets(counter: np.ndarray) -> np.ndarray:
    """A counter that falls belongs to a worker that was restarted: what it shows then is all new."""
    steps = np.diff(counter, prepend=0.0)
    return np.cumsum(np.where(steps < 0, counter, steps))


def _edges(workers: tuple[WorkerSamples, ...]) -> np.ndarray | None:
    """About two samples to an interval, so that a rate is not an accident of when the sample was taken."""
    num_samples = max((len(worker.t) for worker in workers), default=0)
    end = max((worker.t[-1] for worker in workers), default=0.0)
    if num_samples < 3 or end <= 0:
        return None
    return np.linspace(0.0, end, min(MOST_INTERVALS, max(2, num_samples // 2)) + 1)


def _growth(workers: tuple[WorkerSamples, ...], name: str, edges: np.ndarray) -> np.ndarray:
    """How much the workers' counters grew in each interval; from zero, one sample's distance before the first."""
    total = np.zeros(len(edges) - 1)
    for worker in workers:
        spacing = float(np.median(np.diff(worker.t))) if len(worker.t) > 1 else 0.0
        t = np.concatenate([[max(0.0, worker.t[0] - spacing)], worker.t])
        at_edges = np.interp(edges, t, np.concatenate([[0.0], worker.values[name]]))
        at_edges[0] = 0.0  # what the first sample, at time zero, shows already grew in the first interval
        total += np.diff(at_edges)
    return total


def _integral(worker: WorkerSamples, name: str) -> np.ndarray:
    """Running integral over time (trapezoids), shape [num_samples], starting at zero."""
    values = worker.values[name]
    areas = (values[1:] + values[:-1]) / 2 * np.diff(worker.t)
    return np.concatenate([[0.0], np.cumsum(areas)])


def _mean(workers: tuple[WorkerSamples, ...], name: str, edges: np.ndarray) -> np.ndarray:
    """Sum over workers of a gauge's mean; a worker counts as zero before its first and after its last sample."""
    areas = [np.diff(np.interp(edges, worker.t, _integral(worker, name))) for worker in workers]
    return np.sum(areas, axis=0) / np.diff(edges)


def _mean_alive(workers: tuple[WorkerSamples, ...], name: str, edges: np.ndarray) -> np.ndarray:
    alive = np.sum([np.diff(np.clip(edges, worker.t[0], worker.t[-1])) for worker in workers], axis=0)
    area = _mean(workers, name, edges) * np.diff(edges)
    return np.divide(area, alive, out=np.zeros_like(area), where=alive > 0)


def _peak(workers: tuple[WorkerSamples, ...], name: str, edges: np.ndarray) -> np.ndarray:
    """Never below the mean: an interval without a sample of its own has the mean as its peak."""
    peak = _mean_alive(workers, name, edges)
    for worker in workers:
        interval = np.clip(np.searchsorted(edges, worker.t, side="right") - 1, 0, len(peak) - 1)
        np.maximum.at(peak, interval, worker.values[name])
    return peak
