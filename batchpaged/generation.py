"""Completions for rows that a program holds in memory: the whole pipeline, on a temporary run directory."""

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from batchpaged.api import run
from batchpaged.errors import InputError
from batchpaged.run.progress import ProgressReporter

if TYPE_CHECKING:
    from datasets import Dataset

    Rows = TypeVar("Rows", Dataset, pa.Table, list[dict[str, Any]])
else:
    Rows = TypeVar("Rows")


@dataclass(frozen=True)
class Generation:
    """What `generate` gives back."""

    data: Any  # the same kind as was given, with the output columns of DESIGN.md
    report: dict[str, Any]  # report.json


def generate(
    data: Rows,
    *,
    model: str | Mapping[str, Any],
    prompt: str | Mapping[str, Any],
    sampling: Mapping[str, Any] | None = None,
    engine: Mapping[str, Any] | None = None,
    evaluate: Mapping[str, Any] | None = None,
    cluster: Mapping[str, Any] | None = None,
    run_dir: Path | str | None = None,
    reporter: ProgressReporter | None = None,
) -> Generation:
    """Generate one completion per row of a Hugging Face Dataset, a list of dicts or a pyarrow Table.

    `model` is a model id or a pipeline file's `model` section, `prompt` a Jinja2 template of the user message or a
    `prompt` section; the others are sections as well. Rows come back in their order and in the kind they were given,
    with the columns completion, finish_reason, prompt_tokens, cached_tokens, completion_tokens, status, error and
    prompt_hash. With `run_dir` everything stays there and an interrupted call goes on; without, it is deleted.
    Raises RefusedError or UnfinishedError as `run` does.

    >>> rows = [{"q": "What is the capital of France?"}]
    >>> batchpaged.generate(rows, model="smollm2-135m-instruct", prompt="{{ q }}").data[0]["completion"]
    """
    table = _to_table(data)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="batchpaged-")))
        pq.write_table(table, folder / "rows.parquet")
        sections = {
            "name": "generate",
            "input": {"path": str(folder / "rows.parquet")},
            "model": {"id": model} if isinstance(model, str) else model,
            "prompt": {"user": prompt} if isinstance(prompt, str) else prompt,
            "output": {"path": str(run_dir or folder / "run")},
        }
        given = {"sampling": sampling, "engine": engine, "evaluate": evaluate, "cluster": cluster}
        sections |= {key: section for key, section in given.items() if section is not None}
        result = run(sections, reporter=reporter)
        return Generation(_from_table(pq.read_table(result.run_dir / "output" / "rows.parquet"), data), result.report)


def _to_table(data: Any) -> pa.Table:
    if isinstance(data, pa.Table):
        return data
    if hasattr(data, "with_format") and hasattr(data, "to_dict"):
        return data.with_format("arrow")[:]
    if isinstance(data, Sequence) and not isinstance(data, (str, bytes)):
        return _table_of_dicts(data)
    raise InputError(f"generate takes a Dataset, a pyarrow Table or a list of dicts, not {type(data).__name__}")


def _table_of_dicts(rows: Sequence[Any]) -> pa.Table:
    if not rows:
        raise InputError("generate was given no rows")
    wrong = next((i for i, row in enumerate(rows) if not isinstance(row, Mapping)), None)
    if wrong is not None:
        raise InputError(f"row {wrong} is a {type(rows[wrong]).__name__}, not a dict of column values")
    names = list(dict.fromkeys(name for row in rows for name in row))
    try:
        return pa.table({name: [row.get(name) for row in rows] for name in names})
    except (pa.ArrowException, TypeError) as error:
        raise InputError(f"the rows do not have one type per column: {error}") from error


def _from_table(table: pa.Table, like: Any) -> Any:
    if isinstance(like, pa.Table):
        return table
    if hasattr(like, "with_format"):
        from datasets import Dataset

        return Dataset(table.replace_schema_metadata(None))
    return table.to_pylist()
