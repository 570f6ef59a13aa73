"""The command line. Each command calls one function of api.py and prints what it gives back.

api.py brings torch and transformers, so it is imported inside the commands: `--help` has to be instant.
"""

import os
import shlex
import sys
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path

import click

from batchpaged.cli.machine import bench, models
from batchpaged.cli.output import NOT_FINISHED, file_argument, limit_option, progress, say, set_option, width
from batchpaged.cli.past import clean, compare, history
from batchpaged.cli.plan import plan
from batchpaged.cli.size import size
from batchpaged.errors import BatchpagedError, RefusedError, StoppedError

_LOG_FORMAT = "batchpaged.log_format"  # of stderr, in click's context
_RESUME = "batchpaged.resume"  # in click's context: gives the command that goes on, and whether any unit has finished

EXIT_CODES = """\b
Exit codes:
  0  done
  1  done, but a gate of the pipeline failed, or every row did
  2  refused before any work: a bad file, key, input or model; nothing was written
  3  not finished: run the same command again and it goes on
"""


class Commands(click.Group):
    """Turns errors into one message on stderr and an exit code; a traceback only with BATCHPAGED_DEBUG=1."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.Abort, click.exceptions.Exit):
            raise
        except KeyboardInterrupt:
            _complain("interrupted", ctx)
            ctx.exit(NOT_FINISHED)
        except StoppedError as error:
            _complain(str(error), ctx)
            ctx.exit(error.exit_code)
        except BatchpagedError as error:
            _complain(f"error: {error}", ctx, may_resume=not isinstance(error, RefusedError))
            ctx.exit(error.exit_code)
        except Exception as error:
            _complain(f"error: {type(error).__name__}: {error}\n{_BUG}", ctx)
            ctx.exit(NOT_FINISHED)


_BUG = "This is a bug in batchpaged. BATCHPAGED_DEBUG=1 shows where it is."


def _complain(message: str, ctx: click.Context, may_resume: bool = True) -> None:
    if os.environ.get("BATCHPAGED_DEBUG") == "1":
        traceback.print_exc()
    resume, has_units = ctx.meta[_RESUME]() if may_resume and _RESUME in ctx.meta else (None, False)
    if ctx.meta.get(_LOG_FORMAT) == "json":
        from batchpaged.run.log import JsonReporter

        JsonReporter(sys.stderr).log("ended", message=message, resume=resume)
        return
    click.echo(message, err=True)
    if resume:
        click.echo(f"{'Finished units are kept. ' * has_units}To go on:\n  {resume}", err=True)


_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(cls=Commands, epilog=EXIT_CODES, context_settings=_SETTINGS)
@click.version_option(package_name="batchpaged", prog_name="batchpaged")
def cli() -> None:
    """Run a language model over a whole Parquet data set and never compute the same prompt prefix twice.

    \b
    Start here:
      batchpaged validate pipelines/rag_eval.yaml    check file, input and model
      batchpaged plan pipelines/rag_eval.yaml        see what the run will take
      batchpaged run pipelines/rag_eval.yaml         do it; run again to go on after an interruption

    A pipeline file names input, prompt, model and output: see docs/pipeline-file.md.
    """


@cli.command(short_help="Run a pipeline: Parquet in, completions and a report out.")
@file_argument
@set_option
@limit_option
@click.option("--run-dir", metavar="DIR", help="Use DIR, not the file's output.path.")
@click.option("--fresh", is_flag=True, help="Discard what an earlier run left in the run directory and start over.")
@click.option(
    "--log-format",
    type=click.Choice(["auto", "json"]),
    default="auto",
    help="json: progress on stderr as JSON lines, as in the run directory's log.jsonl.",
)
@click.option("--retry-failed", is_flag=True, help="Compute failed rows of finished units again, and no other rows.")
@click.pass_context
def run(
    ctx: click.Context,
    file: Path,
    overrides: tuple[str, ...],
    limit: int | None,
    run_dir: str | None,
    fresh: bool,
    log_format: str,
    retry_failed: bool,
) -> None:
    """Run a pipeline: Parquet in, Parquet with completions and a report out.

    The run directory (output.path) receives output/*.parquet in input order, report.json, report.html and
    metrics.prom. Finished units are kept: after an interruption the same command goes on where it stopped. Progress
    goes to stderr, the summary to stdout.

    \b
    Examples:
      batchpaged run pipelines/rag_eval.yaml
      batchpaged run rag.yaml --limit 100 --run-dir runs/try
      batchpaged run rag.yaml --set engine.kv_cache=4GiB --set 'sampling.stop=["\\n"]'
      batchpaged run rag.yaml --fresh
      batchpaged run rag.yaml --retry-failed --set engine.kv_cache=8GiB

    Ctrl-C or SIGTERM while units are computed finishes those; a second one stops at once. Either way the same command
    goes on.

    Exit code 1 says that a gate failed, 3 that the run is not finished.
    """
    if fresh and retry_failed:
        raise click.UsageError("--fresh discards what --retry-failed would keep; give one of them.")
    ctx.meta[_RESUME] = lambda: (resume_command(file, overrides, limit, run_dir), _has_finished_units(file, overrides, run_dir))
    ctx.meta[_LOG_FORMAT] = log_format
    from batchpaged.cli.text import summary_lines

    with progress(log_format) as (reporter, stop):
        from batchpaged import api

        result = api.run(
            file,
            overrides=overrides,
            limit=limit,
            run_dir=run_dir,
            fresh=fresh,
            retry_failed=retry_failed,
            reporter=reporter,
            stop=stop,
        )
    say(summary_lines(result.report, result.run_dir, result.location, width()))
    ctx.exit(result.exit_code)


def resume_command(file: Path, overrides: Iterable[str], limit: int | None, run_dir: str | None) -> str:
    """The same command, but without --fresh, which would discard what is finished, and --retry-failed, which is noted
    in the run directory."""
    from batchpaged.dataset.locations import mask_credentials

    words = ["batchpaged", "run", str(file)]
    for override in overrides:
        words += ["--set", override]
    words += [] if limit is None else ["--limit", str(limit)]
    words += [] if run_dir is None else ["--run-dir", run_dir]
    return shlex.join(map(mask_credentials, words))


def _has_finished_units(file: Path, overrides: Sequence[str], run_dir: str | None) -> bool:
    from batchpaged.config import load_pipeline
    from batchpaged.run.outline import has_finished_units

    try:
        return has_finished_units(load_pipeline(file, overrides).output.path if run_dir is None else run_dir)
    except (BatchpagedError, OSError):  # a file that is gone, or a folder that cannot be read: the run's own error says more
        return False


@cli.command(short_help="Check a pipeline file, its input and its model.")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@set_option
@click.option("--schema", is_flag=True, help="Print the JSON schema of pipeline files, for editors, and stop.")
def validate(file: Path | None, overrides: tuple[str, ...], schema: bool) -> None:
    """Check a pipeline file, its input and its model; compute nothing, write nothing.

    Every problem of the file is listed at once, with line, key, value, what is allowed and the nearest spelling.

    \b
    Examples:
      batchpaged validate pipelines/rag_eval.yaml
      batchpaged validate rag.yaml --set model.id=./my-model
      batchpaged validate --schema > pipeline.schema.json
    """
    from batchpaged.cli.text import schema_lines, validation_lines

    if schema:
        say(schema_lines())
        return
    if file is None:
        raise click.UsageError("Missing argument 'FILE' (or --schema).")
    from batchpaged import api

    say(validation_lines(str(file), api.validate(file, overrides=overrides)))


@cli.command(short_help="Show how far a run is.")
@click.argument("target", metavar="RUN_DIR_OR_FILE")
def status(target: str) -> None:
    """Show how far a run is, by its run directory or its pipeline file.

    \b
    Examples:
      batchpaged status runs/rag_eval
      batchpaged status pipelines/rag_eval.yaml
    """
    from batchpaged import api
    from batchpaged.cli.text import status_lines
    from batchpaged.config import load_pipeline

    run_dir = load_pipeline(target).output.path if Path(target).is_file() else target
    say(status_lines(api.status(run_dir)))


for command in (plan, compare, history, clean, models, size, bench):
    cli.add_command(command)


def main() -> None:
    """The console script. Output that the terminal's encoding lacks is replaced; a run never fails for a dash."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
    cli(prog_name="batchpaged")
