"""The commands about runs that are over: compare, history, clean."""

from pathlib import Path

import click

from batchpaged.cli.output import NOT_FINISHED, say, width

_folder = click.argument("folder")


@click.command(short_help="Compare two runs: completions, metrics, reuse, speed.")
@click.argument("a")
@click.argument("b")
@click.option("--id", "id_column", metavar="COLUMN", help="Tell rows apart by COLUMN, not by input.id_column.")
@click.option("--references", metavar="COLUMN", help="Score against COLUMN, not the runs' evaluate.references.")
@click.option("--ids", "num_ids", type=click.IntRange(min=0), default=10, show_default=True, help="Row ids to list.")
@click.option("--text", "with_text", is_flag=True, help="Show the completions of the listed rows that changed.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--fail-on-change", is_flag=True, help="Exit code 1 if a completion changed, or a row came or went.")
@click.option("--fail-on-worse", is_flag=True, help="Exit code 1 if a metric got worse beyond doubt; says which.")
@click.pass_context
def compare(
    ctx: click.Context,
    a: str,
    b: str,
    id_column: str | None,
    references: str | None,
    num_ids: int,
    with_text: bool,
    as_json: bool,
    fail_on_change: bool,
    fail_on_worse: bool,
) -> None:
    """Compare run A, the one before, with run B: run directories, output folders, or report.json files.

    Rows are matched by id. Shown are rows whose completions changed, failed or recovered, or that only one run has;
    metrics with 95% intervals, and their difference row by row; hit rate, speed and time.

    \b
    Examples:
      batchpaged compare runs/2026-03-01 runs/2026-03-02
      batchpaged compare runs/base runs/new --text --ids 20
      batchpaged compare runs/base runs/new --json --fail-on-worse

    \b
    Exit codes: 0 compared; 1 --fail-on-change or --fail-on-worse applies; 2 the two cannot be compared.
    """
    from batchpaged import api
    from batchpaged.cli.text import comparison_lines
    from batchpaged.past.compare_text import worse_lines

    result = api.compare(a, b, id_column=id_column, references=references, num_ids=num_ids, with_text=with_text)
    if (fail_on_change and result.result["rows"] is None) or (fail_on_worse and not result.is_judged):
        raise click.UsageError("there are no rows, or no metrics of rows, that could be judged: give run directories")
    say(comparison_lines(result, as_json, width()))
    if fail_on_worse:
        for line in worse_lines(result.result["metrics"]):
            click.echo(line, err=True)
    is_changed = fail_on_change and result.has_changes
    ctx.exit(1 if is_changed or (fail_on_worse and result.is_worse) else 0)


@click.command(short_help="Show the runs of a folder over time.")
@_folder
@click.option("--name", metavar="NAME", help="Only runs of the pipeline called NAME.")
@click.option("--last", type=click.IntRange(min=1), metavar="N", help="Only the last N runs.")
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="Also write a page with charts.")
@click.option("--json", "form", flag_value="json", help="Print JSON.")
@click.option("--csv", "form", flag_value="csv", help="Print CSV.")
def history(folder: str, name: str | None, last: int | None, html: Path | None, form: str | None) -> None:
    """Show the runs whose directories lie in FOLDER, over time: rows, metrics, hit rate, speed, gates.

    \b
    Examples:
      batchpaged history runs
      batchpaged history runs --last 30 --html runs/history.html
      batchpaged history runs --name rag_eval --csv > runs.csv
    """
    from batchpaged import api
    from batchpaged.cli.text import history_lines

    records = api.history(folder, name=name, last=last, html=html)
    say(history_lines(records, form, width()))


def _age(ctx: click.Context, option: click.Parameter, text: str | None) -> float | None:
    units = {"h": 3600, "d": 86400, "w": 7 * 86400}
    if text is None:
        return None
    if not text[:-1].isdecimal() or text[-1] not in units:
        raise click.BadParameter("a number and h, d or w: 12h, 30d, 8w")
    return float(int(text[:-1]) * units[text[-1]])


@click.command(short_help="Delete old run directories.")
@_folder
@click.option("--keep", type=click.IntRange(min=1), metavar="N", help="Keep the last N runs of each name.")
@click.option("--older-than", callback=_age, metavar="AGE", help="Keep runs younger than AGE: 12h, 30d, 8w.")
@click.option("--keep-results", is_flag=True, help="Delete only what is needed to go on; output and reports stay.")
@click.option("--yes", is_flag=True, help="Delete; without it nothing is, and what would go is shown.")
@click.pass_context
def clean(
    ctx: click.Context, folder: str, keep: int | None, older_than: float | None, keep_results: bool, yes: bool
) -> None:
    """Delete old run directories in FOLDER; a dry run unless --yes is given.

    With both --keep and --older-than a run has to be beyond both to go. The last good run of each name always stays,
    and so do runs at work and directories that hold anything no run writes. Links are not followed.

    \b
    Examples:
      batchpaged clean runs --older-than 90d
      batchpaged clean runs --older-than 7d --keep-results --yes
      batchpaged clean runs --keep 30 --older-than 30d --yes
    """
    from batchpaged import api
    from batchpaged.cli.text import cleaning_lines

    if keep is None and older_than is None:
        raise click.UsageError("Say what may go: --keep N, --older-than AGE, or both.")
    result = api.clean(folder, keep=keep or 0, min_age=older_than or 0.0, keep_results=keep_results, delete=yes)
    say(cleaning_lines(result))
    ctx.exit(NOT_FINISHED if result.errors else 0)
