"""The command line: commands, and how they print what api.py gives back."""

from batchpaged.cli.commands import cli, main

__all__ = ["cli", "main"]
