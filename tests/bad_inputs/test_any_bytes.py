"""Parquet files with any bytes changed: refused in words, or read whole."""

import numpy as np
import pyarrow as pa
from bad_inputs.bad_files import parquet
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batchpaged.config import InputConfig
from batchpaged.dataset.source import open_source
from batchpaged.errors import InputError

TABLE = pa.table(
    {
        "question": [f"What is {i}?" for i in range(20)],
        "n": pa.array(range(20), pa.int32()),
        "nested": [[{"a": i, "b": None}] * (i % 3) for i in range(20)],
        "t": pa.array(range(20), pa.timestamp("us", "Europe/Paris")),
    }
)
WHOLE = parquet(TABLE, row_group_size=7, write_page_checksum=True)
places = st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(1, 255)), min_size=1, max_size=4)


def is_settled(path):
    """Raises whatever is no InputError."""
    try:
        source = open_source(InputConfig(path=str(path)))
        rows = sum(rows.num_rows for part in source.parts for rows in source.iter_tables(part))
        return rows == source.num_rows
    except InputError as error:
        return "a.parquet" in str(error) or "no rows" in str(error)


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(places)
def test_changed_bytes(tmp_path, changes):
    content = np.frombuffer(WHOLE, np.uint8).copy()
    for place, change in changes:
        content[place] ^= change
    (tmp_path / "a.parquet").write_bytes(content.tobytes())
    assert is_settled(tmp_path / "a.parquet")


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(st.integers(0, len(WHOLE)), st.integers(0, len(WHOLE)))
def test_a_piece_that_is_missing(tmp_path, start, end):
    start, end = sorted((start, end))
    (tmp_path / "a.parquet").write_bytes(WHOLE[:start] + WHOLE[end:])
    assert is_settled(tmp_path / "a.parquet")


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(st.binary(max_size=200), st.sampled_from([b"", b"PAR1"]), st.sampled_from([b"", b"PAR1", b"PARE"]))
def test_any_bytes(tmp_path, content, start, end):
    (tmp_path / "a.parquet").write_bytes(start + content + end)
    assert is_settled(tmp_path / "a.parquet")
