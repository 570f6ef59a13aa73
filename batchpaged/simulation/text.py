"""A simulation as lines for a terminal."""

from collections.abc import Iterator

from batchpaged.report import formatting as fmt
from batchpaged.simulation.result import Simulation, SimulationResult

HEAD = (
    "WORKERS", "HIT RATE", "REUSE", "PREFILLED", "CACHE MEAN", "PEAK", "PREEMPTED", "UNITS", "STEALS", "TIME", "BALANCE", "ROWS/S",
)  # fmt: skip


def simulation_lines(simulation: Simulation) -> Iterator[str]:
    yield ""
    yield f"Simulated with {_rows(simulation)}{_sequences(simulation.num_sequences)}, completions of {fmt.rate(simulation.mean_completion)} tokens on average:"
    yield ""
    table = [HEAD, *map(_cells, simulation.results)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        yield "  " + "  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True))
    yield ""
    yield "  REUSE is reuse_efficiency; BALANCE the time of the last worker over the mean of all; STEALS are ranges that were"
    yield f"  cut again for a worker without units. TIME and ROWS/S: {simulation.time_note}."


def _rows(simulation: Simulation) -> str:
    if simulation.num_rows == simulation.num_rows_planned:
        return f"all {fmt.plural(simulation.num_rows, 'row')}"
    return f"{fmt.count(simulation.num_rows)} of {fmt.plural(simulation.num_rows_planned, 'row')}, in slices of the plan"


def _sequences(number: int) -> str:
    return f" of {number} sequences each" * (number > 1)


def _cells(result: SimulationResult) -> tuple[str, ...]:
    return (
        fmt.count(result.num_workers),
        f"{result.hit_rate:.4f}",
        fmt.ABSENT if result.reuse_efficiency is None else f"{result.reuse_efficiency:.5f}",
        fmt.compact(result.num_prefilled_tokens),
        fmt.percent(result.mean_cache_usage),
        fmt.percent(result.peak_cache_usage),
        fmt.count(result.num_preemptions),
        fmt.count(result.num_units),
        fmt.count(result.num_steals),
        fmt.seconds(result.seconds),
        f"{result.balance:.3f}",
        fmt.rate(result.rows_per_second),
    )
