import os
import pickle
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batchpaged.dataset.parts import PartSize
from batchpaged.dataset.source import open_source
from batchpaged.errors import InputError


def read(source, part, columns=None):
    return pa.concat_tables(source.iter_tables(part, columns))


def rows_of(source, columns=None):
    return [row for part in source.parts for row in read(source, part, columns).to_pylist()]


@pytest.fixture
def parts_of_one_file(monkeypatch):
    monkeypatch.setattr("batchpaged.dataset.source.PART_SIZE", PartSize(num_files=1))


def problems_of(config):
    with pytest.raises(InputError) as caught:
        open_source(config)
    return str(caught.value)


def test_rows_come_in_file_order_with_ordinals(write, input_config, parts_of_one_file):
    folder = write({f"{name}.parquet": {"x": [10 * i, 10 * i + 1]} for i, name in enumerate("abc")})
    source = open_source(input_config(folder))
    assert source.num_rows == 6
    assert [Path(file.path).name for file in source.files] == ["a.parquet", "b.parquet", "c.parquet"]
    assert [part.first_ordinal for part in source.parts] == [0, 2, 4]
    assert [row["x"] for row in rows_of(source)] == [0, 1, 10, 11, 20, 21]


def test_a_source_travels(write, input_config):
    source = open_source(input_config(write({"a.parquet": {"x": [1, 2]}})))
    copy = pickle.loads(pickle.dumps(source))
    assert rows_of(copy) == rows_of(source) and copy.fingerprint() == source.fingerprint()


def test_columns_in_the_order_asked_for(write, input_config):
    source = open_source(input_config(write({"a.parquet": {"x": [1], "y": [2], "z": [3]}})))
    assert read(source, source.parts[0], ["z", "x"]).column_names == ["z", "x"]


@pytest.mark.parametrize(("limit", "num_files"), [(1, 1), (2, 1), (3, 2), (5, 3), (6, 3), (100, 3)])
def test_a_limit_cuts_rows_and_files(write, input_config, limit, num_files):
    folder = write({f"{name}.parquet": {"x": [10 * i, 10 * i + 1]} for i, name in enumerate("abc")})
    source = open_source(input_config(folder, limit=limit))
    assert [row["x"] for row in rows_of(source)] == [0, 1, 10, 11, 20, 21][:limit]
    assert source.num_rows_left_out == max(0, 6 - limit)
    assert len(source.files) == num_files


def test_a_limit_inside_a_row_group(write, input_config):
    folder = write({"a.parquet": {"x": list(range(50_000))}}, row_group_size=50_000)
    source = open_source(input_config(folder, limit=10))
    assert [part.num_rows for part in source.parts] == [10]
    assert [row["x"] for row in rows_of(source)] == list(range(10))


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 15)), min_size=1, max_size=4), st.none() | st.integers(1, 90)
)
def test_any_layout_of_files_and_row_groups_gives_every_row_once(write, input_config, layout, limit):
    folder, first = write({}), 0
    for path in folder.glob("*.parquet"):
        path.unlink()
    for i, (num_rows, group_rows) in enumerate(layout):
        write({f"{i}.parquet": {"x": pa.array(range(first, first + num_rows), pa.int64())}}, row_group_size=group_rows)
        first += num_rows
    if first == 0:
        assert "no rows" in problems_of(input_config(folder))
        return
    source = open_source(input_config(folder, limit=limit))
    assert [row["x"] for row in rows_of(source)] == list(range(first))[:limit]
    for part in source.parts:
        assert read(source, part).num_rows == part.num_rows


def test_shards_of_different_schemas_become_one(write, input_config):
    words = pa.array([["x"]], pa.large_list(pa.large_string()))
    folder = write(
        {
            "a.parquet": {"q": ["1"], "n": pa.array([1], pa.int32()), "w": pa.array([["v"]])},
            "b.parquet": {"n": pa.array([2.5]), "q": pa.array(["2"]).dictionary_encode()},
            "c.parquet": {"q": pa.nulls(1), "w": words, "extra": [True]},
        }
    )
    source = open_source(input_config(folder))
    assert dict(zip(source.schema.names, map(str, source.schema.types), strict=True)) == {
        "q": "string",
        "n": "double",
        "w": "large_list<element: large_string>",
        "extra": "bool",
    }
    assert rows_of(source) == [
        {"q": "1", "n": 1.0, "w": ["v"], "extra": None},
        {"q": "2", "n": 2.5, "w": None, "extra": None},
        {"q": None, "n": None, "w": ["x"], "extra": True},
    ]
    assert rows_of(source, ["extra"]) == [{"extra": None}, {"extra": None}, {"extra": True}]
    for part in source.parts:
        assert read(source, part).schema.equals(source.schema, check_metadata=True)


def test_types_that_agree_pass_unchanged(write, input_config, parts_of_one_file):
    table = pa.table(
        {
            "category": pa.array(["u", "v"]).dictionary_encode(),
            "when": pa.array([1, None], pa.timestamp("us", "Europe/Paris")),
            "nested": pa.array([[{"a": ["x"]}], None]),
            "pairs": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int8())),
            "nothing": pa.nulls(2),
            "price": pa.array([1, 2], pa.decimal128(9, 2)),
        }
    )
    source = open_source(input_config(write({"a.parquet": table, "b.parquet": table})))
    assert source.schema.types == table.schema.types
    assert read(source, source.parts[1]).to_pylist() == table.to_pylist()


def test_integers_beside_doubles_only_while_no_digit_is_lost(write, input_config):
    folder = write({"a.parquet": {"n": [0.5]}, "b.parquet": {"n": [2**53 - 1, None]}})
    assert [row["n"] for row in rows_of(open_source(input_config(folder)))] == [0.5, 2.0**53 - 1, None]
    write({"b.parquet": {"n": [2**53 + 1] * 20_000}}, row_group_size=1000)
    message = problems_of(input_config(folder))
    assert "'n' is int64" in message and "double" in message and "b.parquet" in message
    assert "1 problem)" in message and str(2**53 + 1) not in message


def test_all_problems_of_all_files_at_once(write, input_config):
    folder = write(
        {
            "a.parquet": {"q": ["x"], "status": ["x"]},
            "b.parquet": {"q": [1]},
            "c.parquet": pa.Table.from_arrays([pa.array([1])] * 2, ["z", "z"]),
        }
    )
    (folder / "d.parquet").write_text("q\nx\n")
    (folder / "e.parquet").touch()
    message = problems_of(input_config([folder, folder / "missing.parquet", folder / "*.csv"]))
    assert "(7 problems)" in message
    for words in ("'status'", "'q' is string", "'z'", "d.parquet: not Parquet", "e.parquet: the file is empty",
                  "missing.parquet does not exist", "*.csv matches no file"):  # fmt: skip
        assert words in message


def test_a_long_list_of_problems_is_cut(write, input_config):
    folder = write({})
    for i in range(80):
        (folder / f"{i:02}.parquet").touch()
    message = problems_of(input_config(folder))
    assert "(80 problems)" in message and "... and 30 more" in message and message.count("\n") == 51


def test_no_rows_at_all(write, input_config):
    folder = write({name: pa.table({"x": pa.array([], pa.int8())}) for name in ("a.parquet", "b.parquet")})
    assert "the 2 input files hold no rows" in problems_of(input_config(folder))


def test_files_without_rows_are_fine_beside_others(write, input_config):
    empty = pa.table({"x": pa.array([], pa.null())})
    source = open_source(input_config(write({"a.parquet": empty, "b.parquet": {"x": ["v"]}, "c.parquet": empty})))
    assert [file.num_rows for file in source.files] == [0, 1, 0]
    assert rows_of(source) == [{"x": "v"}]


def test_a_column_parquet_cannot_hold(tmp_path, input_config):
    table = pa.table({"x": pa.array([{}], pa.struct([]))})
    with pa.ipc.new_stream(str(tmp_path / "a.arrow"), table.schema) as writer:
        writer.write_table(table)
    assert "column 'x' of type struct<> cannot be written to Parquet" in problems_of(input_config(tmp_path / "a.arrow"))


@pytest.mark.parametrize("change", ["touch", "append", "replace", "delete"])
def test_a_file_that_changes_under_the_run_is_noticed(write, input_config, parts_of_one_file, change):
    folder = write({"a.parquet": {"x": [1]}, "b.parquet": {"x": [2]}})
    source = open_source(input_config(folder))
    path = folder / "a.parquet"
    if change == "delete":
        path.unlink()
    elif change == "touch":
        os.utime(path, ns=(1, 1))
    elif change == "append":
        path.write_bytes(path.read_bytes() + b" ")
    else:
        write({"a.parquet": {"x": [3]}})
    with pytest.raises(InputError, match=r"a\.parquet: (changed since|no longer there)"):
        read(source, source.parts[0])
    assert read(source, source.parts[1])["x"].to_pylist() == [2]


def test_damaged_pages_are_refused_with_file_and_row_groups(write, input_config):
    path = write({"a.parquet": {"x": [f"{i:050}" for i in range(1000)]}}, use_dictionary=False) / "a.parquet"
    content = bytearray(path.read_bytes())
    content[4:200] = b"\xff" * 196
    path.write_bytes(content)
    source = open_source(input_config(path))
    with pytest.raises(InputError, match=r"a\.parquet: row groups 0 to 0 cannot be read"):
        read(source, source.parts[0])


@pytest.fixture
def small_parts(monkeypatch):
    """Parts count as huge from 101 rows on, and are read in batches of 64."""
    monkeypatch.setattr("batchpaged.dataset.source.PART_SIZE", PartSize(num_rows=100))
    monkeypatch.setattr("batchpaged.dataset.formats._BATCH_ROWS", 64)


@pytest.mark.parametrize("limit", [None, 1, 64, 100, 101, 130, 500])
@pytest.mark.parametrize("max_fetched", [0, 2**30])
def test_a_huge_row_group_is_read_in_pieces(write, input_config, small_parts, monkeypatch, limit, max_fetched):
    monkeypatch.setattr("batchpaged.dataset.formats._MAX_FETCHED_BYTES", max_fetched)
    columns = {"x": list(range(500)), "words": [["w"] * (i % 5) for i in range(500)]}
    folder = write({"a.parquet": columns, "b.parquet": {"x": [7]}}, row_group_size=500)
    source = open_source(input_config(folder, limit=limit))
    for part in source.parts:
        tables = list(source.iter_tables(part))
        assert max(map(len, tables)) <= 100
        assert pa.concat_tables(tables).equals(read(source, part))


def test_a_huge_batch_of_a_saved_dataset_is_read_in_pieces(tmp_path, input_config, small_parts):
    datasets.Dataset.from_dict({"x": list(range(450))}).save_to_disk(str(tmp_path / "saved"))
    source = open_source(input_config(tmp_path / "saved"))
    tables = [table for part in source.parts for table in source.iter_tables(part)]
    assert max(map(len, tables)) <= 100
    assert pa.concat_tables(tables)["x"].to_pylist() == list(range(450))


def test_damage_inside_a_huge_row_group_is_refused(write, input_config, small_parts):
    columns = {"x": [f"{i:050}" for i in range(1000)]}
    options = {"use_dictionary": False, "compression": "none", "data_page_size": 1000, "write_page_checksum": True}
    path = write({"a.parquet": columns}, **options) / "a.parquet"
    path.write_bytes(path.read_bytes().replace(b"0" * 47 + b"500", b"0" * 47 + b"501", 1))
    source = open_source(input_config(path))
    with pytest.raises(InputError, match=r"a\.parquet: row groups 0 to 0 cannot be read"):
        list(source.iter_tables(source.parts[0]))


def test_a_changed_byte_is_noticed_where_pages_have_checksums(write, input_config):
    table = {"x": [f"{i:050}" for i in range(1000)]}
    options = {"use_dictionary": False, "compression": "none", "write_page_checksum": True}
    path = write({"a.parquet": table}, **options) / "a.parquet"
    content = path.read_bytes()
    path.write_bytes(content.replace(b"0" * 47 + b"500", b"0" * 47 + b"501", 1))
    source = open_source(input_config(path))
    with pytest.raises(InputError, match="cannot be read"):
        read(source, source.parts[0])


def test_every_bad_file_of_a_part_is_named(write, input_config):
    folder = write({f"{name}.parquet": {"x": [name]} for name in "abcde"})
    source = open_source(input_config(folder))
    (part,) = source.parts
    for name in "bd":
        (folder / f"{name}.parquet").unlink()
    rows = []
    with pytest.raises(InputError) as caught:
        rows.extend(row for table in source.iter_tables(part) for row in table["x"].to_pylist())
    assert [problem.endswith(f"{name}.parquet: no longer there; it was when the run started") for problem, name
            in zip(caught.value.problems, "bd", strict=True)] == [True, True]  # fmt: skip
    assert pickle.loads(pickle.dumps(caught.value)).problems == caught.value.problems


def test_small_files_are_read_in_one_table_with_one_dictionary(write, input_config):
    tables = {f"{i}.parquet": pa.table({"x": pa.array([f"v{i}", "w"]).dictionary_encode()}) for i in range(5)}
    source = open_source(input_config(write(tables)))
    (table,) = source.iter_tables(source.parts[0])
    assert table["x"].to_pylist() == [value for i in range(5) for value in (f"v{i}", "w")]
    assert all(chunk.dictionary.equals(table["x"].chunk(0).dictionary) for chunk in table["x"].chunks)


def test_wide_rows_are_read_few_at_a_time(write, input_config, monkeypatch):
    monkeypatch.setattr("batchpaged.dataset.source.PART_SIZE", PartSize(num_bytes=30_000))
    monkeypatch.setattr("batchpaged.dataset.formats._BATCH_ROWS", 10)
    source = open_source(input_config(write({"a.parquet": {"x": [f"{i:01000}" for i in range(100)]}})))
    tables = [table for part in source.parts for table in source.iter_tables(part)]
    assert [table.num_rows for table in tables] == [20] * 5  # bytes with offsets: a little more than 10,000 each


def test_the_fingerprint_follows_the_files(write, input_config):
    folder = write({"a.parquet": {"x": [1]}, "b.parquet": {"x": [1]}})
    before = open_source(input_config(folder)).fingerprint()
    assert before == open_source(input_config(folder)).fingerprint()
    assert before != open_source(input_config([folder / "b.parquet", folder / "a.parquet"])).fingerprint()
    os.utime(folder / "a.parquet", ns=(5, 5))
    after = open_source(input_config(folder)).fingerprint()
    assert after[0] != before[0] and after[1] == before[1]
    assert set(after[0]) == {"path", "size", "version", "num_rows"}


def test_a_saved_hugging_face_dataset_reads_as_datasets_reads_it(tmp_path, input_config):
    features = datasets.Features({"label": datasets.ClassLabel(names=["no", "yes"]), "text": datasets.Value("string")})
    data = datasets.Dataset.from_dict({"label": [i % 2 for i in range(2500)], "text": ["t"] * 2500}, features)
    data.shuffle(seed=1).filter(lambda row: row["label"] == 1).save_to_disk(str(tmp_path / "saved"), num_shards=2)
    source = open_source(input_config(tmp_path / "saved"))
    expected = datasets.load_from_disk(str(tmp_path / "saved")).with_format("arrow")[:]
    assert pa.concat_tables(read(source, part) for part in source.parts).equals(expected)
    assert datasets.Features.from_arrow_schema(source.schema) == features


def test_an_empty_saved_dataset(tmp_path, input_config):
    datasets.Dataset.from_dict({"x": [1]}).select([]).save_to_disk(str(tmp_path / "saved"))
    assert "no rows" in problems_of(input_config(tmp_path / "saved"))


def test_fsspec_sources_read_and_notice_changes(memory_fs, input_config, parts_of_one_file):
    def put(name, values):
        with memory_fs.open(name, "wb") as file:
            pq.write_table(pa.table({"x": values}), file)

    put("/data/a.parquet", [1, 2])
    put("/data/b.parquet", [3])
    source = open_source(input_config("memory://data"))
    assert [row["x"] for row in rows_of(source)] == [1, 2, 3]
    assert [entry["path"] for entry in source.fingerprint()] == ["memory:///data/a.parquet", "memory:///data/b.parquet"]
    put("/data/a.parquet", [4, 5])
    with pytest.raises(InputError, match="changed since"):
        read(source, source.parts[0])


def test_many_small_files_open_from_their_footers(write, input_config):
    folder = write({"f0.parquet": {"id": ["x"], "text": ["y"]}})
    for i in range(1, 10_000):
        os.link(folder / "f0.parquet", folder / f"f{i}.parquet")
    source = open_source(input_config(folder))
    assert source.num_rows == len(source.files) == 10_000
    assert len(source.parts) == 157
