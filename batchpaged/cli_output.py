"""What all commands print with."""

import os
import sys
from collections.abc import Iterable

import click

NOT_FINISHED = 3  # exit code
WIDTH_OF_A_LOG = 200  # where no terminal says how wide it is: paths stay in one piece


def say(lines: Iterable[str]) -> None:
    """Prints; a reader that has gone, as in `| head`, changes nothing about the exit code."""
    try:
        click.echo("\n".join(lines))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def width() -> int | None:
    """None: the terminal's own."""
    return None if sys.stdout.isatty() else WIDTH_OF_A_LOG
