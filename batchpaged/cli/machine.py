"""The commands about models and this machine: models, bench."""

import sys
from pathlib import Path

import click

from batchpaged.cli.output import FAILED, limit_option, progress, say


@click.command(short_help="List models and where they are.")
def models() -> None:
    """List the model aliases, where each is on this machine, and the model types that model.id can name besides.

    \b
    Example:
      batchpaged models
    """
    from batchpaged import api
    from batchpaged.cli.text import architecture_lines, model_lines

    say(model_lines(api.models()))
    say(architecture_lines(api.supported_architectures()))


@click.command(short_help="Measure rows and tokens per second on this machine.")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option(
    "--max-tokens", type=click.IntRange(min=1), default=32, show_default=True, help="Tokens of each completion."
)
@limit_option
@click.option("--gpu-check", is_flag=True, help="Instead: check every GPU kernel and measure how near it is to the card's limits.")
@click.option(
    "--json",
    "json_path",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    default="gpu_check.json",
    show_default=True,
    help="Where --gpu-check writes its figures.",
)
def bench(file: Path | None, max_tokens: int, limit: int | None, gpu_check: bool, json_path: Path) -> None:
    """Measure rows and tokens per second on this machine, every completion forced to the same length.

    Without FILE the sample data and its model are used. --gpu-check takes no FILE: weights are random and nothing is
    downloaded. It ends with a table, and with exit code 1 where a kernel is wrong.

    \b
    Examples:
      batchpaged bench
      batchpaged bench rag.yaml --max-tokens 64 --limit 200
      batchpaged bench --gpu-check
    """
    if gpu_check:
        from batchpaged.gpu_check import run_gpu_check

        if not run_gpu_check(json_path, click.echo):
            sys.exit(FAILED)
        return
    with progress() as (reporter, _):
        from batchpaged import api

        result = api.bench(file, max_tokens=max_tokens, limit=limit, reporter=reporter)
    say(result.lines())
