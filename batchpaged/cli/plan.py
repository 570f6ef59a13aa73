"""The command that says what a run would take."""

from pathlib import Path

import click

from batchpaged.cli.output import file_argument, limit_option, progress, say, set_option

MAX_WORKERS = 4096  # of a simulation


def _worker_counts(ctx: click.Context, option: click.Parameter, text: str | None) -> tuple[int, ...]:
    words = text.split(",") if text else []
    counts = [int(word) if word.strip().isdecimal() else 0 for word in words]
    if any(not 1 <= count <= MAX_WORKERS for count in counts):
        raise click.BadParameter(f"numbers of workers, 1 to {MAX_WORKERS:,}, with commas between, as in 1,8,64")
    return tuple(counts)


@click.command(short_help="Show what a run would take, without running it.")
@file_argument
@set_option
@limit_option
@click.option(
    "--simulate", "workers", metavar="N,N,...", callback=_worker_counts, help="Replay the plan on so many workers."
)
@click.option(
    "--simulate-rows",
    "rows",
    type=click.IntRange(min=1),
    metavar="N",
    help="Replay about N rows of a larger plan (100,000 if not given).",
)
@click.option(
    "--simulate-length",
    "length",
    type=click.FloatRange(min=1),
    metavar="MEAN",
    help="Completions of MEAN tokens on average, of varying length; else each takes max_tokens.",
)
def plan(
    file: Path,
    overrides: tuple[str, ...],
    limit: int | None,
    workers: tuple[int, ...],
    rows: int | None,
    length: float | None,
) -> None:
    """Show what a run would take; a dry run that writes nothing.

    Reads and tokenises all rows and orders them by shared prefix: rows, tokens, unique tokens, the ceiling of the
    prefix cache's hit rate, rows that will fail, KV memory, estimated time.

    With --simulate the plan is replayed through the real scheduler and prefix cache, without a model and in virtual
    time: hit rate, use of the cache, and how evenly workers are loaded, for each number of workers.

    \b
    Examples:
      batchpaged plan pipelines/rag_eval.yaml
      batchpaged plan rag.yaml --set model.max_model_len=4096
      batchpaged plan rag.yaml --simulate 1,8,64 --simulate-length 20 --set engine.kv_cache=8GiB
    """
    from batchpaged.cli.text import plan_lines
    from batchpaged.simulation.request import MAX_ROWS, SimulationRequest

    if not workers and (rows or length):
        raise click.UsageError("--simulate-rows and --simulate-length go with --simulate.")
    request = SimulationRequest(workers, rows or MAX_ROWS, length) if workers else None

    with progress() as (reporter, _):
        from batchpaged import api

        report = api.plan(file, overrides=overrides, limit=limit, simulate=request, reporter=reporter)
    say(plan_lines(report))
