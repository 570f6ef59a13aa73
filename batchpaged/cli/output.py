"""What commands have in common: arguments, how they print, how they show progress."""

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from batchpaged.run.progress import ProgressReporter
    from batchpaged.run.stopping import StopRequest

FAILED, NOT_FINISHED = 1, 3  # exit codes
WIDTH_OF_A_LOG = 200  # where no terminal says how wide it is: paths stay in one piece

file_argument = click.argument("file", type=click.Path(path_type=Path))
set_option = click.option(
    "--set", "overrides", metavar="KEY=VALUE", multiple=True, help="Put a value (YAML) over the file's; repeatable."
)
limit_option = click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Take the first N rows only.")


def say(lines: Iterable[str]) -> None:
    """Prints; a reader that has gone, as in `| head`, changes nothing about the exit code."""
    try:
        click.echo("\n".join(lines))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def width() -> int | None:
    """None: the terminal's own."""
    return None if sys.stdout.isatty() else WIDTH_OF_A_LOG


@contextmanager
def progress(log_format: str = "auto") -> Iterator[tuple["ProgressReporter", "StopRequest"]]:
    """A display on stderr for the work inside, and what Ctrl-C and SIGTERM, which are the same here, ask of it."""
    from batchpaged.run.log import JsonReporter
    from batchpaged.run.progress import make_reporter
    from batchpaged.run.stopping import StopRequest

    stop = StopRequest()
    reporter = JsonReporter(sys.stderr) if log_format == "json" else make_reporter(sys.stderr)
    with stop.listening(), closing(reporter):
        yield reporter, stop
