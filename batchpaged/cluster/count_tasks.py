"""The stage before tokenising that `prompt.reorder` needs: in how many rows does each document occur?"""

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from batchpaged.cluster.job import Job
from batchpaged.config import Pipeline
from batchpaged.dataset.parts import Part
from batchpaged.dataset.reorder import DocumentCounts, Reorder, count_documents, merge_counts, read_counts
from batchpaged.dataset.source import Source
from batchpaged.errors import UnfinishedError
from batchpaged.run.progress import Progress, ProgressReporter


def count_part(job: Job, index: int) -> None:
    """Write the counts of one part, unless they are there already."""
    part = job.source.parts[index]
    target = job.directory.document_file(part)
    if target.exists() or job.directory.document_counts.exists():
        return
    counts = _count(job.source, part, job.pipeline.prompt.reorder)
    job.check_is_current()
    target.parent.mkdir(exist_ok=True)
    counts.write(target)


def merge_parts(job: Job, counted: object) -> None:
    """Add up the counts of all parts; `counted` are their tasks. The result is the same however often it is made."""
    target = job.directory.document_counts
    if target.exists():
        return
    counts = merge_counts(_read(job.directory.document_file(part)) for part in job.source.parts)
    job.check_is_current()
    counts.shared().write(target)


def load_reorder(job: Job) -> Reorder | None:
    """What `prompt.reorder` asks for, once the counts are there; None if it asks for nothing."""
    column = job.pipeline.prompt.reorder
    return None if column is None else _load(job.sitting, column, job.directory.document_counts)


@lru_cache(maxsize=1)
def _load(sitting: str, column: str, path: Path) -> Reorder:
    """Once per sitting and process."""
    return Reorder(column, _read(path))


def count_here(pipeline: Pipeline, source: Source, reporter: ProgressReporter) -> Reorder | None:
    """The same in this process, with no files: for dry runs."""
    column = pipeline.prompt.reorder
    if column is None:
        return None
    counts = merge_counts(_counts_of_parts(source, column, reporter))
    return Reorder(column, counts.shared())


def _counts_of_parts(source: Source, column: str, reporter: ProgressReporter) -> Iterator[DocumentCounts]:
    for part in source.parts:
        reporter.update(Progress("read", part.index, len(source.parts), "parts"))
        yield _count(source, part, column)


def _count(source: Source, part: Part, column: str) -> DocumentCounts:
    return merge_counts(count_documents(rows[column], column) for rows in source.iter_tables(part, [column]))


def _read(path: Path) -> DocumentCounts:
    try:
        return read_counts(path)
    except (OSError, ValueError, KeyError) as error:  # Arrow's errors are among these
        raise UnfinishedError(f"{path} is damaged ({type(error).__name__}); start over with --fresh") from error
