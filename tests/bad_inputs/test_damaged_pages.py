"""Files whose footers are sound and whose pages are not: found when they are read, before any inference, all at once."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiny_runs

from batchpaged import api
from batchpaged.errors import UnfinishedError

WORDS = pa.table({"question": [f"What is {i}?" for i in range(40)], "other": [f"other {i}" for i in range(40)]})


def spoil(path, column, seed):
    """Other bytes in the middle of a column of the first row group."""
    chunk = pq.read_metadata(path).row_group(0).column(column)
    start = (chunk.dictionary_page_offset or chunk.data_page_offset) + chunk.total_compressed_size // 2
    content = bytearray(path.read_bytes())
    content[start : start + 8] = np.random.default_rng(seed).bytes(8)
    path.write_bytes(content)


def test_all_of_them_are_named_before_any_inference():
    folder = tiny_runs.new_path("pages")
    folder.mkdir()
    for name in "abcd":
        pq.write_table(WORDS, folder / f"{name}.parquet", write_page_checksum=True, compression="zstd")
    spoil(folder / "b.parquet", 0, 0)
    spoil(folder / "d.parquet", 1, 1)  # a column that no prompt uses, but the output holds
    run_dir = tiny_runs.new_path("pages-run")
    sections = {"input": {"path": str(folder)}, "prompt": {"user": "{{ question }}"}, "evaluate": None, "gates": []}
    with pytest.raises(UnfinishedError, match=r"2 problems\)") as caught:
        api.run(tiny_runs.pipeline(run_dir, **sections))
    message = str(caught.value)
    assert "b.parquet: row groups 0 to 0 cannot be read" in message and "d.parquet: row groups" in message
    assert "a.parquet" not in message and "c.parquet" not in message
    assert not list((run_dir / "units").iterdir())
