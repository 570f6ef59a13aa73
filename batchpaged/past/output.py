"""The output of a run as a comparison needs it: ids, hashes of what was answered, and scores. No text stays in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from batchpaged.dataset.locations import Location
from batchpaged.errors import InputError, RunDirectoryError
from batchpaged.evaluation.answers import ANSWER_METRICS
from batchpaged.evaluation.evaluator import check_references, usable_references
from batchpaged.evaluation.metrics import score_answer

_BATCH_ROWS = 10_000
_NEEDED = ("completion", "status")


@dataclass(frozen=True)
class OutputRows:
    """All rows of a run, in input order. Arrays have shape [num_rows]."""

    ids: pa.Array  # string; no id comes twice
    completions: np.ndarray  # uint64 hashes; NO_COMPLETION where the row failed
    prompts: np.ndarray | None  # uint64 hashes; None where the output has none
    is_failed: np.ndarray
    scores: dict[str, np.ndarray]  # metric -> float64, NaN where the row does not count

    def __len__(self) -> int:
        return len(self.ids)


NO_COMPLETION = np.uint64(0)


def output_files(folder: Location) -> list[Location]:
    """Raises RunDirectoryError if there are none."""
    files = [folder.at(info.path) for info in folder.list(is_recursive=False) if info.path.endswith(".parquet")]
    if not files:
        raise RunDirectoryError(f"{folder.name} holds no output (*.parquet); give the directory of a finished run")
    return files


def read_output(folder: Location, id_column: str | None, references: str | None, metrics: Sequence[str]) -> OutputRows:
    """Without `id_column` a row's position is its id; without `references` there are no scores.

    Raises InputError if a column is missing, ids are null or come twice; RunDirectoryError if there is no output.
    """
    files = output_files(folder)
    columns = _columns(files, id_column, references)
    metrics = metrics if references is not None else ()
    parts = [_read_batch(batch, id_column, references, metrics) for batch in _batches(files, columns)]
    ids = pa.chunked_array([part[0] for part in parts], pa.string()).combine_chunks() if id_column else None
    num_rows = sum(len(part[1]) for part in parts)
    ids = pc.cast(pa.array(np.arange(num_rows)), pa.string()) if ids is None else ids
    _check_ids(ids, folder, id_column)
    return OutputRows(
        ids=ids,
        completions=_joined([part[1] for part in parts], np.uint64),
        prompts=_joined([part[2] for part in parts], np.uint64) if "prompt_hash" in columns else None,
        is_failed=_joined([part[3] for part in parts], bool),
        scores={name: _joined([part[4][name] for part in parts], np.float64) for name in metrics},
    )


def read_texts(folder: Location, id_column: str | None, wanted: set[str]) -> dict[str, str | None]:
    """Completions of the rows with those ids; several of one row in one text."""
    found: dict[str, str | None] = {}
    position = 0
    for batch in _batches(output_files(folder), [*filter(None, [id_column]), "completion"]):
        ids = _texts(batch[id_column]).to_pylist() if id_column else map(str, range(position, position + len(batch)))
        texts = map(_one_text, batch["completion"].to_pylist())
        found |= {key: text for key, text in zip(ids, texts) if key in wanted}
        position += len(batch)
    return found


def read_scores(file: Location, names: Sequence[str], num_rows: int) -> dict[str, np.ndarray]:
    """Metric -> score of each row, NaN where it does not count; none at all where the file is of another output."""
    try:
        with file.open() as stream:
            table = pq.read_table(stream)
    except (pa.ArrowException, OSError):
        return {}
    if table.num_rows != num_rows:
        return {}
    return {name: table[name].to_numpy().astype(np.float64) for name in names if name in table.column_names}


def _one_text(completion: str | list[str] | None) -> str | None:
    return "\n---\n".join(completion) if isinstance(completion, list) else completion


def _columns(files: Sequence[Location], id_column: str | None, references: str | None) -> list[str]:
    schema = _schema(files[0])
    wanted = [*_NEEDED, *filter(None, [id_column, references])]
    missing = [name for name in wanted if name not in schema.names]
    if missing:
        raise InputError(f"{files[0].name} has no column {missing[0]!r}, only {', '.join(schema.names)}")
    if references is not None:
        check_references(references, schema.field(references).type)
    return list(dict.fromkeys([*wanted, *(["prompt_hash"] if "prompt_hash" in schema.names else [])]))


def _schema(file: Location) -> pa.Schema:
    try:
        with file.open() as stream:
            return pq.read_schema(stream)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{file.name} cannot be read ({type(error).__name__})") from error


def _batches(files: Sequence[Location], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    for file in files:
        try:
            with file.open() as stream:
                parquet = pq.ParquetFile(stream, pre_buffer=not file.is_local)
                yield from parquet.iter_batches(_BATCH_ROWS, columns=list(columns))
        except (pa.ArrowException, OSError, KeyError) as error:
            raise InputError(f"{file.name} cannot be read ({type(error).__name__})") from error


def _read_batch(
    batch: pa.RecordBatch, id_column: str | None, references: str | None, metrics: Sequence[str]
) -> tuple[pa.Array | None, np.ndarray, np.ndarray | None, np.ndarray, dict[str, np.ndarray]]:
    completions = batch["completion"].to_pylist()
    scores = _scores(completions, batch[references].to_pylist(), metrics) if references else {}
    return (
        _texts(batch[id_column]) if id_column else None,
        _hashes(completions),
        _hashes(batch["prompt_hash"].to_pylist()) if "prompt_hash" in batch.schema.names else None,
        np.array([status == "failed" for status in batch["status"].to_pylist()], dtype=bool),
        scores,
    )


def _texts(ids: pa.Array) -> pa.Array:
    ids = ids.dictionary_decode() if pa.types.is_dictionary(ids.type) else ids
    try:
        return ids.cast(pa.string())
    except pa.ArrowException as error:
        raise InputError(f"a column of {ids.type} cannot hold row ids") from error


def _hashes(texts: Sequence[Any]) -> np.ndarray:
    """64 bits: among a billion rows, two different texts in the same row are taken for one with a chance of 5e-11."""
    hash_of = xxhash.xxh3_64_intdigest
    return np.array(
        [NO_COMPLETION if text is None else hash_of(str(text).encode()) | 1 for text in texts], dtype=np.uint64
    )


def _scores(completions: Sequence[Any], references: Sequence[Any], metrics: Sequence[str]) -> dict[str, np.ndarray]:
    """As the report counts: a row without a usable reference has none, a failed one has 0, several completions their mean."""
    rows = list(zip(completions, map(usable_references, references), strict=True))
    return {
        name: np.array([_score(ANSWER_METRICS[name], *row) for row in rows], dtype=np.float64) for name in metrics
    }


def _score(metric: Callable[[str, Sequence[str]], float | None], completion: Any, references: Sequence[str]) -> float:
    answers = completion if isinstance(completion, list) else [completion]
    scores = [score_answer(metric, answer, references) for answer in answers]
    return np.nan if None in scores else float(np.mean(scores))


def _joined(parts: Sequence[np.ndarray], kind: type) -> np.ndarray:
    return np.concatenate([np.array([], dtype=kind), *parts])


def _check_ids(ids: pa.Array, folder: Location, id_column: str | None) -> None:
    if ids.null_count:
        raise InputError(f"{folder.name}: column {id_column!r} has {ids.null_count} nulls and cannot tell rows apart")
    if pc.count_distinct(ids).as_py() != len(ids):
        raise InputError(f"{folder.name}: in column {id_column!r} ids come twice; give another with --id")
