"""A unit's results on disk: one Parquet file, published by rename."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from batchpaged.atomic import replacing
from batchpaged.dataset.schema import OUTPUT_COLUMNS
from batchpaged.engine.engine import Completion, Output
from batchpaged.engine.step import TokenLogprobs
from batchpaged.errors import UnfinishedError

_METADATA_KEY = b"batchpaged"
_CHECKSUM_KEY = b"batchpaged.checksum"


class DamagedUnit(UnfinishedError):
    """A unit's file cannot be read; without it the unit is computed anew."""


def unit_schema(columns: pa.Schema = OUTPUT_COLUMNS) -> pa.Schema:
    return pa.schema([("ordinal", pa.int64()), ("row_id", pa.string()), *columns])


def result_row(
    prompt: dict[str, Any], outcome: Completion | str | None, columns: pa.Schema = OUTPUT_COLUMNS
) -> dict[str, Any]:
    """One row of a unit. `prompt` is a row of the plan; `outcome` its completion, or why the engine refused it."""
    row = dict.fromkeys(unit_schema(columns).names)
    row |= {key: prompt[key] for key in ("ordinal", "row_id", "status", "error")}
    if prompt["token_ids"] is not None:
        row |= {"prompt_tokens": len(prompt["token_ids"]), "prompt_hash": prompt_hash(prompt["token_ids"])}
    if isinstance(outcome, str):
        row |= {"status": "failed", "error": outcome}
    elif outcome is not None:
        row |= _completion_values(outcome, columns) | {"cached_tokens": outcome.num_cached_tokens}
        if "prompt_logprobs" in row:
            row["prompt_logprobs"] = _prompt_logprobs(prompt["token_ids"], outcome.prompt_logprobs)
    return row


def _completion_values(completion: Completion, columns: pa.Schema) -> dict[str, Any]:
    """Lists, one item per completion, where the columns are."""
    each = [_output_values(output, columns.names) for output in completion.outputs]
    if not pa.types.is_list(columns.field("completion").type):
        return each[0]
    return {name: [values[name] for values in each] for name in each[0]}


def _output_values(output: Output, names: Sequence[str]) -> dict[str, Any]:
    values: dict[str, Any] = {
        "completion": output.text,
        "finish_reason": output.finish_reason,
        "completion_tokens": len(output.token_ids),
    }
    if "completion_score" in names:
        values["completion_score"] = output.score
    if "completion_logprobs" in names:
        values["completion_logprobs"] = _logprobs(output.token_ids, output.logprobs)
    return values


def _prompt_logprobs(token_ids: Sequence[int], logprobs: TokenLogprobs) -> list[dict[str, Any]]:
    """Nothing comes before the first token, so it has none."""
    first = {"token_id": token_ids[0], "logprob": None, "rank": None, "top": None}
    return [first, *_logprobs(token_ids[1:], logprobs)]


def _logprobs(token_ids: Sequence[int], logprobs: TokenLogprobs) -> list[dict[str, Any]]:
    """Items of TOKENS_LOGPROBS."""
    tops = zip(logprobs.top_ids.tolist(), logprobs.top_logprobs.tolist(), strict=True)
    return [
        {
            "token_id": token_id,
            "logprob": logprob,
            "rank": rank,
            "top": [{"token_id": t, "logprob": x} for t, x in zip(*top, strict=True)],
        }
        for token_id, logprob, rank, top in zip(
            token_ids, logprobs.logprobs.tolist(), logprobs.ranks.tolist(), tops, strict=True
        )
    ]


def prompt_hash(token_ids: list[int]) -> str:
    """xxh3-128, 32 hex digits, over the token ids as little-endian int32."""
    return xxhash.xxh3_128_hexdigest(np.asarray(token_ids, dtype="<i4").tobytes())


def write_unit(
    path: Path, rows: list[dict[str, Any]], facts: dict[str, Any], columns: pa.Schema = OUTPUT_COLUMNS
) -> None:
    """Publish a unit; `facts` (JSON-able) travel in the file's metadata, so that they are there exactly when it is."""
    write_unit_table(path, pa.Table.from_pylist(rows, schema=unit_schema(columns)), facts)


def write_unit_table(path: Path, table: pa.Table, facts: dict[str, Any]) -> None:
    """The same of rows that are a table of `unit_schema`."""
    content = json.dumps(facts).encode()
    metadata = {_METADATA_KEY: content, _CHECKSUM_KEY: _checksum(table, content)}
    with replacing(path) as temporary:
        pq.write_table(table.replace_schema_metadata(metadata), temporary, compression="zstd", write_page_checksum=True)


def _checksum(table: pa.Table, facts: bytes) -> bytes:
    """Over what the rows are, not how they lie in memory or in a file: nulls, then values with something in place of nulls."""
    digest = xxhash.xxh3_128(facts)
    digest.update(",".join(table.column_names).encode())
    for column in table.columns:
        _digest_values(digest, column.combine_chunks())
    return digest.hexdigest().encode()


def _digest_values(digest: xxhash.xxh3_128, values: pa.Array) -> None:
    digest.update(pc.is_null(values).to_numpy(zero_copy_only=False).tobytes())
    if pa.types.is_string(values.type):
        filled = pc.fill_null(values, "")
        digest.update(pc.binary_length(filled).to_numpy().tobytes())
        digest.update("".join(filled.to_pylist()).encode())
    elif pa.types.is_list(values.type):
        digest.update(pc.fill_null(pc.list_value_length(values), 0).to_numpy().tobytes())
        _digest_values(digest, pc.list_flatten(values))
    elif pa.types.is_struct(values.type):
        for index in range(values.type.num_fields):
            _digest_values(digest, pc.struct_field(values, index))
    else:
        digest.update(pc.fill_null(values, 0).to_numpy().tobytes())


def check_unit(path: Path) -> None:
    """Read all of it. Raises DamagedUnit if anything is not what `write_unit` wrote."""
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            table, metadata = file.read(), file.metadata.metadata
        is_same = metadata[_CHECKSUM_KEY] == _checksum(table, metadata[_METADATA_KEY])
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        if getattr(error, "errno", None) is not None:
            raise
        raise DamagedUnit(f"{path} is damaged ({type(error).__name__})") from error
    if not is_same:
        raise DamagedUnit(f"{path} is damaged: its rows are not those that were written")


def read_unit_facts(path: Path) -> dict[str, Any]:
    """Raises DamagedUnit if the file is not what `write_unit` wrote, as far as its footer tells."""
    try:
        metadata = pq.read_metadata(path)
        facts = json.loads(metadata.metadata[_METADATA_KEY])
        is_whole = metadata.num_rows == facts["num_rows"]
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        if getattr(error, "errno", None) is not None:  # the disk's or the system's fault, and no reason to distrust it
            raise
        raise DamagedUnit(f"{path} is damaged ({type(error).__name__})") from error
    if not is_whole:
        raise DamagedUnit(f"{path} is damaged: {metadata.num_rows} rows of {facts['num_rows']}")
    return facts


def _age(facts: dict[str, Any]) -> tuple[int, int]:
    """Of an engine. Units may end in one step; fanned-out rows count as they end."""
    return facts["num_steps"], facts["num_completion_tokens"]


def last_of_each_session(facts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Counters in unit facts grow during an engine's life: its last unit holds its totals. One entry per engine."""
    last: dict[str, dict[str, Any]] = {}
    for item in facts:
        session = item.get("session")
        if session is not None and (session not in last or _age(last[session]) <= _age(item)):
            last[session] = item
    return list(last.values())
