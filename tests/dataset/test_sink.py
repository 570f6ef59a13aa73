import os
from pathlib import Path

import datasets
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batchpaged.dataset import sink, windows
from batchpaged.dataset.parts import PartSize, RowGroup, cut_parts
from batchpaged.dataset.schema import OUTPUT_COLUMNS
from batchpaged.dataset.sink import assemble
from batchpaged.dataset.source import open_source
from batchpaged.errors import UnfinishedError

UNITS = [[9, 0, 4], [5, 1], [8, 7, 3, 2, 6]]


def test_rows_go_back_to_their_files_in_order_with_every_column(source, tmp_path, write_units, results):
    progress = []
    assemble(source, write_units(tmp_path / "units", UNITS), tmp_path / "out", progress.append)
    assert sorted(os.listdir(tmp_path / "out")) == ["_SUCCESS", "a.parquet", "b.parquet", "c.parquet"]
    tables = [pq.read_table(tmp_path / f"out/{name}.parquet") for name in "abc"]
    assert [table["id"].to_pylist() for table in tables] == [[0, 1, 2, 3], [], [4, 5, 6, 7, 8, 9]]
    assert tables[0]["words"].to_pylist() == [["x"], None, [], ["y", None]]
    everything = pa.concat_tables(tables)
    assert everything.column_names == ["id", "words", *OUTPUT_COLUMNS.names]
    assert everything.select(OUTPUT_COLUMNS.names).to_pylist() == results(range(10)).drop(["ordinal"]).to_pylist()
    assert [everything.schema.field(field.name).type for field in OUTPUT_COLUMNS] == OUTPUT_COLUMNS.types
    assert progress[-1] == 10 and progress == sorted(progress)


def test_the_output_reads_as_one_dataset(source, tmp_path, write_units):
    assemble(source, write_units(tmp_path / "units", UNITS), tmp_path / "out")
    assert pads.dataset(tmp_path / "out").to_table()["id"].to_pylist() == list(range(10))
    assert datasets.load_dataset(str(tmp_path / "out"), split="train", cache_dir=str(tmp_path / "cache")).num_rows == 10
    assert open_source_names(tmp_path / "out") == ["a.parquet", "b.parquet", "c.parquet"]


def open_source_names(folder):
    from batchpaged.dataset.discovery import find_files

    return [Path(file.location.path).name for file in find_files([str(folder)])[0]]


@pytest.mark.parametrize(
    ("units", "words"),
    [
        ([[0, 1, 2, 3, 4, 5, 7, 8]], r"2 rows are missing from the units \(the first is row 6\)"),
        ([*UNITS, [3, 4]], r"2 rows are in the units more than once \(the first is row 3\)"),
        ([[0, 1, 1, 3, 4, 5, 6, 7, 8, 9]], "1 rows are missing .*row 2.* and 1 rows are in the units more than once"),
        ([*UNITS, [10]], "rows that the input does not have"),
        ([*UNITS, [-1]], "rows that the input does not have"),
        ([], "10 rows are missing"),
    ],
)
def test_every_ordinal_exactly_once_or_nothing_is_published(source, tmp_path, units, words, write_units):
    with pytest.raises(UnfinishedError, match=words):
        assemble(source, write_units(tmp_path / "units", units), tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == ["input", "units"]


def test_a_unit_that_cannot_be_read_is_named(source, tmp_path, write_units):
    units = write_units(tmp_path / "units", UNITS)
    (units / "unit-00001.parquet").write_bytes(b"PAR1 damaged")
    with pytest.raises(UnfinishedError, match="unit-00001.parquet: this unit cannot be read"):
        assemble(source, units, tmp_path / "out")
    pq.write_table(pa.table({"ordinal": [1]}), units / "unit-00001.parquet")
    with pytest.raises(UnfinishedError, match="unit-00001.parquet: this unit cannot be read"):
        assemble(source, units, tmp_path / "out")


def test_temporary_units_are_no_units(source, tmp_path, write_units):
    units = write_units(tmp_path / "units", UNITS)
    (units / ".unit-00003.parquet.tmp").write_bytes(b"half")
    (units / "unit-00003.parquet.tmp").write_bytes(b"half")
    assemble(source, units, tmp_path / "out")


def test_units_may_have_more_columns_in_any_order(source, tmp_path, write_units):
    units = write_units(tmp_path / "units", UNITS)
    for path in units.iterdir():
        table = pq.read_table(path)
        pq.write_table(table.select(table.column_names[::-1]).append_column("more", table["ordinal"]), path)
    assemble(source, units, tmp_path / "out")
    assert pq.read_table(tmp_path / "out/a.parquet").column_names == ["id", "words", *OUTPUT_COLUMNS.names]


def test_a_limited_run_writes_only_its_rows(tmp_path, input_config, write, write_units):
    folder = write({"in/a.parquet": {"id": [0, 1, 2]}, "in/b.parquet": {"id": [3, 4, 5]}, "in/c.parquet": {"id": [6]}})
    source = open_source(input_config(folder / "in", limit=5))
    assemble(source, write_units(tmp_path / "units", [[4, 3, 2, 1, 0]]), tmp_path / "out")
    assert [pq.read_table(tmp_path / f"out/{name}.parquet").num_rows for name in "ab"] == [3, 2]
    assert not (tmp_path / "out/c.parquet").exists()


def test_row_groups_are_bounded(tmp_path, input_config, write, monkeypatch, write_units):
    monkeypatch.setattr("batchpaged.dataset.source.PART_SIZE", PartSize(num_rows=100))
    monkeypatch.setattr("batchpaged.dataset.formats._BATCH_ROWS", 50)  # the input is one row group of more
    source = open_source(input_config(write({"in/a.parquet": {"id": list(range(250))}}) / "in"))
    assemble(source, write_units(tmp_path / "units", [range(250)]), tmp_path / "out")
    metadata = pq.read_metadata(tmp_path / "out/a.parquet")
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [100, 100, 50]
    assert metadata.row_group(0).column(0).compression == "ZSTD"


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["/x/a.parquet", "/y/a.parquet", "/z/A.parquet"], ["a.parquet", "a-1.parquet", "A-2.parquet"]),
        (["a.parquet", "a-1.parquet", "b/a.parquet"], ["a.parquet", "a-1.parquet", "a-2.parquet"]),
        (["s3://b/x.PARQUET", "memory:///d/noextension", "data-00000-of-00001.arrow"],
         ["x.parquet", "noextension.parquet", "data-00000-of-00001.parquet"]),
        (["/x/_hidden.parquet", "/x/.parquet"], ["hidden.parquet", "data.parquet"]),
    ],
)  # fmt: skip
def test_output_names_are_the_inputs_made_unique(paths, names):
    assert sink._output_names(paths) == names


def test_many_equal_names(tmp_path):
    names = sink._output_names([f"/part={i}/data.parquet" for i in range(5000)])
    assert len(set(names)) == 5000


def test_all_kinds_of_columns_come_out_as_they_went_in(tmp_path, write, input_config, write_units):
    frame = pd.DataFrame({"cat": pd.Categorical(["u", "v"]), "when": pd.to_datetime(["2024-01-01", None], utc=True)})
    table = pa.Table.from_pandas(frame)
    for name, column in {
        "nested": pa.array([[{"a": ["x"], "b": None}], None]),
        "pairs": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int8())),
        "nothing": pa.nulls(2),
        "large": pa.array(["x", None], pa.large_string()),
        "price": pa.array([1, 2], pa.decimal128(9, 2)),
        "bytes": pa.array([b"\xff", None]),
        "uuid": pa.array([b"0" * 16, None], pa.uuid()),
        "fixed": pa.array([[1, 2], [3, 4]], pa.list_(pa.float16(), 2)),
        "ordinal": pa.array([7, 7]),
    }.items():
        table = table.append_column(name, column)
    source = open_source(input_config(write({"in/a.parquet": table, "in/b.parquet": table}) / "in"))
    assemble(source, write_units(tmp_path / "units", [[3, 1, 2, 0]]), tmp_path / "out")
    read = pq.read_table(tmp_path / "out/b.parquet")
    table = pq.read_table(tmp_path / "in/b.parquet")  # what any reader sees of the input
    for name in table.column_names:
        assert read.schema.field(name).type == table.schema.field(name).type, name
        assert read[name].to_pylist() == table[name].to_pylist()
    assert read.to_pandas()["cat"].dtype == "category"


def test_hugging_face_features_survive(tmp_path, input_config, write_units):
    features = datasets.Features({"label": datasets.ClassLabel(names=["no", "yes"]), "text": datasets.Value("string")})
    data = datasets.Dataset.from_dict({"label": [0, 1, 1], "text": ["a", "b", "c"]}, features)
    data.save_to_disk(str(tmp_path / "saved"), num_shards=2)
    source = open_source(input_config(tmp_path / "saved"))
    assemble(source, write_units(tmp_path / "units", [[0, 1, 2]]), tmp_path / "out")
    assert sorted(os.listdir(tmp_path / "out"))[1:] == [f"data-0000{i}-of-00002.parquet" for i in range(2)]
    loaded = datasets.load_dataset(str(tmp_path / "out"), split="train", cache_dir=str(tmp_path / "cache"))
    assert loaded.features["label"] == features["label"] and "completion" in loaded.column_names
    assert loaded["text"][:] == ["a", "b", "c"]


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_any_spread_over_units_and_windows_gives_the_input_order(
    write, input_config, tmp_path, data, write_units, results
):
    counts = data.draw(st.lists(st.integers(0, 25), min_size=1, max_size=3).filter(any))
    ordinals = data.draw(st.permutations(range(sum(counts))))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ordinals)), max_size=4)))
    units = [ordinals[a:b] for a, b in zip([0, *cuts], [*cuts, len(ordinals)], strict=True)]
    folder, first = write({}) / "in", 0
    for path in folder.glob("*"):
        path.unlink()
    for i, count in enumerate(counts):
        write({f"in/{i}.parquet": {"id": pa.array(range(first, first + count), pa.int64())}}, row_group_size=4)
        first += count
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(windows, "_WINDOW_ROWS", data.draw(st.integers(1, 30)))
        patch.setattr(windows, "_SPREAD_ROWS", data.draw(st.integers(1, 30)))
        patch.setattr("batchpaged.dataset.source.PART_SIZE", PartSize(num_rows=data.draw(st.integers(1, 20))))
        source = open_source(input_config(folder))
        assemble(source, write_units(tmp_path / "units", units), tmp_path / "out")
    read = pa.concat_tables(pq.read_table(tmp_path / f"out/{i}.parquet") for i in range(len(counts)))
    assert read["id"].to_pylist() == list(range(first))
    assert read.select(OUTPUT_COLUMNS.names).to_pylist() == results(range(first)).drop(["ordinal"]).to_pylist()


def test_windows_cover_all_parts_in_order(tmp_path, monkeypatch):
    monkeypatch.setattr(windows, "_WINDOW_ROWS", 1000)
    files = [[RowGroup(rows, 1) for rows in group_rows] for group_rows in ([300] * 20, [5000], [10] * 7)]
    parts = cut_parts(files, size=PartSize(num_rows=500))
    cut = windows.cut_windows(parts, tmp_path)
    assert [part for window in cut for part in window.parts] == list(parts)
    assert all(a.end == b.start for a, b in zip(cut, cut[1:], strict=False)) and len(cut) > 5
