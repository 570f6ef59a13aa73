"""Completions for rows that a program holds in memory: the whole pipeline, on a temporary run directory."""

import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from batchpaged.config import parse_pipeline
from batchpaged.errors import InputError
from batchpaged.run.progress import NullReporter, ProgressReporter
from batchpaged.runner import run_pipeline

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
    prompt_hash, and those that `sampling` asks for; with `n` above 1, completion, finish_reason and completion_tokens
    are lists. With `run_dir` everything stays there and an interrupted call goes on; without, it is deleted.
    Raises RefusedError or UnfinishedError as `run` does.

    >>> rows = [{"q": "What is the capital of France?"}]
    >>> batchpaged.generate(rows, model="smollm2-135m-instruct", prompt="{{ q }}").data[0]["completion"]
    """
    table = _to_table(data)
    with tempfile.TemporaryDirectory(prefix="batchpaged-") as folder:
        rows = Path(folder) / "rows.parquet"
        pq.write_table(table, rows)
        sections = {
            "name": "generate",
            "input": {"path": str(rows)},
            "model": {"id": model} if isinstance(model, str) else model,
            "prompt": {"user": prompt} if isinstance(prompt, str) else prompt,
            "output": {"path": str(run_dir or Path(folder) / "run")},
        }
        given = {"sampling": sampling, "engine": engine, "evaluate": evaluate, "cluster": cluster}
        sections |= {key: section for key, section in given.items() if section is not None}
        digest = xxhash.xxh3_128_hexdigest(rows.read_bytes())
        result = run_pipeline(parse_pipeline(sections), reporter or NullReporter(), rows_digest=digest)
        output = pq.read_table(result.run_dir / "output" / "rows.parquet")
        output = output.select(output.column_names[table.num_columns :])  # the input's columns come first
        return Generation(_add_columns(data, output), result.report)


def _to_table(data: Any) -> pa.Table:
    if isinstance(data, pa.Table):
        return data
    if _is_dataset(data):
        return data.with_format("arrow")[:]
    if isinstance(data, Sequence) and not isinstance(data, (str, bytes)):
        return _table_of_dicts(data)
    raise InputError(f"generate takes a Dataset, a pyarrow Table or a list of dicts, not {type(data).__name__}")


def _is_dataset(data: Any) -> bool:
    if "datasets" not in sys.modules:  # nobody who has one is without it, and it takes a second to import
        return False
    from datasets import Dataset

    return isinstance(data, Dataset)


def _table_of_dicts(rows: Sequence[Any]) -> pa.Table:
    if not rows:
        raise InputError("generate was given no rows")
    wrong = next((i for i, row in enumerate(rows) if not isinstance(row, Mapping)), None)
    if wrong is not None:
        raise InputError(f"row {wrong} is a {type(rows[wrong]).__name__}, not a dict of column values")
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {}
    for name in names:
        try:
            columns[name] = pa.array([row.get(name) for row in rows])
        except (pa.ArrowException, TypeError) as error:  # its message may hold what the rows say
            raise InputError(f"column {name!r} does not have one type in all rows ({type(error).__name__})") from error
    return pa.table(columns)


def _add_columns(data: Any, output: pa.Table) -> Any:
    """What was given, untouched, with the output's columns after its own."""
    if isinstance(data, pa.Table):
        for name, column in zip(output.column_names, output.columns, strict=True):
            data = data.append_column(output.schema.field(name), column)
        return data
    if _is_dataset(data):
        from datasets import Dataset, concatenate_datasets

        return concatenate_datasets([data, Dataset(output.replace_schema_metadata(None))], axis=1)
    return [{**row, **added} for row, added in zip(data, output.to_pylist(), strict=True)]
