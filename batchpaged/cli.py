"""The command line. Each command calls one function of api.py and prints what it gives back.

api.py brings torch and transformers, so it is imported inside the commands: `--help` has to be instant.
"""

import os
import shlex
import signal
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from batchpaged.cli_output import NOT_FINISHED, say, width
from batchpaged.cli_past import clean, compare, history
from batchpaged.cli_size import size
from batchpaged.errors import BatchpagedError, RefusedError, StoppedError

if TYPE_CHECKING:
    from batchpaged.run.progress import ProgressReporter
    from batchpaged.run.stopping import StopRequest

FAILED = 1
MAX_WORKERS = 4096  # of a simulation
_LOG_FORMAT = "batchpaged.log_format"  # of stderr, in click's context
_RESUME = "batchpaged.resume"  # makes the command that goes on with an interrupted run; in click's context

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
    resume = ctx.meta[_RESUME]() if may_resume and _RESUME in ctx.meta else None
    if ctx.meta.get(_LOG_FORMAT) == "json":
        from batchpaged.run.log import JsonReporter

        JsonReporter(sys.stderr).log("ended", message=message, resume=resume)
        return
    click.echo(message, err=True)
    if resume:
        click.echo(f"Finished units are kept. To go on:\n  {resume}", err=True)


@contextmanager
def _progress(log_format: str = "auto") -> Iterator[tuple["ProgressReporter", "StopRequest"]]:
    """A display on stderr for the work inside, and what Ctrl-C and SIGTERM, which are the same here, ask of it."""
    from batchpaged.run.log import JsonReporter
    from batchpaged.run.progress import make_reporter
    from batchpaged.run.stopping import StopRequest

    stop = StopRequest()
    reporter = JsonReporter(sys.stderr) if log_format == "json" else make_reporter(sys.stderr)
    # Where a shell has started us with Ctrl-C ignored, it stays ignored.
    signals = [s for s in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(s) is not signal.SIG_IGN]
    before = {number: signal.signal(number, stop.on_signal) for number in signals}
    try:
        yield reporter, stop
    finally:
        reporter.close()
        for number, handler in before.items():
            signal.signal(number, handler)


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


_file = click.argument("file", type=click.Path(path_type=Path))
_set = click.option(
    "--set", "overrides", metavar="KEY=VALUE", multiple=True, help="Put a value (YAML) over the file's; repeatable."
)
_limit = click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Take the first N rows only.")


@cli.command(short_help="Run a pipeline: Parquet in, completions and a report out.")
@_file
@_set
@_limit
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
    ctx.meta[_RESUME] = lambda: resume_command(file, overrides, limit, run_dir)
    ctx.meta[_LOG_FORMAT] = log_format
    from batchpaged.cli_text import summary_lines

    with _progress(log_format) as (reporter, stop):
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


def _worker_counts(ctx: click.Context, option: click.Parameter, text: str | None) -> tuple[int, ...]:
    words = text.split(",") if text else []
    counts = [int(word) if word.strip().isdecimal() else 0 for word in words]
    if any(not 1 <= count <= MAX_WORKERS for count in counts):
        raise click.BadParameter(f"numbers of workers, 1 to {MAX_WORKERS:,}, with commas between, as in 1,8,64")
    return tuple(counts)


@cli.command(short_help="Show what a run would take, without running it.")
@_file
@_set
@_limit
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
    from batchpaged.cli_text import plan_lines
    from batchpaged.simulation.request import MAX_ROWS, SimulationRequest

    if not workers and (rows or length):
        raise click.UsageError("--simulate-rows and --simulate-length go with --simulate.")
    request = SimulationRequest(workers, rows or MAX_ROWS, length) if workers else None

    with _progress() as (reporter, _):
        from batchpaged import api

        report = api.plan(file, overrides=overrides, limit=limit, simulate=request, reporter=reporter)
    say(plan_lines(report))


@cli.command(short_help="Check a pipeline file, its input and its model.")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@_set
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
    from batchpaged.cli_text import schema_lines, validation_lines

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
    from batchpaged.cli_text import status_lines
    from batchpaged.config import load_pipeline

    run_dir = load_pipeline(target).output.path if Path(target).is_file() else target
    say(status_lines(api.status(run_dir)))


for command in (compare, history, clean, size):
    cli.add_command(command)


@cli.command(short_help="List models and where they are.")
def models() -> None:
    """List the model aliases, where each is on this machine, and the model types that model.id can name besides.

    \b
    Example:
      batchpaged models
    """
    from batchpaged import api
    from batchpaged.cli_text import architecture_lines, model_lines

    say(model_lines(api.models()))
    say(architecture_lines(api.supported_architectures()))


@cli.command(short_help="Measure rows and tokens per second on this machine.")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option(
    "--max-tokens", type=click.IntRange(min=1), default=32, show_default=True, help="Tokens of each completion."
)
@_limit
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
    with _progress() as (reporter, _):
        from batchpaged import api

        result = api.bench(file, max_tokens=max_tokens, limit=limit, reporter=reporter)
    say(result.lines())


def main() -> None:
    """The console script. Output that the terminal's encoding lacks is replaced; a run never fails for a dash."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
    cli(prog_name="batchpaged")
