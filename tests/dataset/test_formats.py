import base64

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as encryption
import pytest

from batchpaged.dataset.discovery import find_files
from batchpaged.dataset.formats import iter_rows, read_facts
from batchpaged.errors import InputError

TABLE = pa.table({"x": list(range(100)), "text": [f"row {i}" for i in range(100)]})


def only(path):
    (file,), problems = find_files([str(path)])
    assert problems == []
    return file


def read(*arguments):
    return pa.concat_tables(iter_rows(*arguments))


def refusal(path):
    with pytest.raises(InputError) as caught:
        read_facts(only(path))
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_facts_come_from_the_footer(write):
    file = only(write({"a.parquet": TABLE}, row_group_size=30) / "a.parquet")
    facts = read_facts(file)
    assert [group.num_rows for group in facts.groups] == [30, 30, 30, 10]
    assert facts.schema.equals(TABLE.schema)


def test_a_footer_longer_than_the_first_read(write):
    wide = pa.table({f"column_{i:04}": ["x"] for i in range(1500)})
    file = only(write({"a.parquet": wide}) / "a.parquet")
    assert file.size > 150_000
    assert len(read_facts(file).schema) == 1500


@pytest.mark.parametrize("name", ["a.parquet", "a.pq", "a.data", "noextension"])
def test_what_is_inside_counts_not_the_name(write, name):
    assert read_facts(only(write({name: TABLE}) / name)).num_rows == 100


BAD_BYTES = {
    "empty": (b"", "empty"),
    "tiny": (b"PAR1", "truncated"),
    "magic only": (b"PAR1PAR1", "truncated"),
    "csv": (b"id,text\n1,hello\n", "CSV"),
    "umlauts": (("x" + "ä" * 300).encode(), "CSV"),
    "json": (b'{"id": 1}\n{"id": 2}\n', "JSON"),
    "json list": (b'[{"id": 1}]', "JSON"),
    "html": (b"<!DOCTYPE html><html></html>", "download"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "git lfs pull"),
    "zip": (b"PK\x03\x04" + bytes(50), "zip"),
    "gzip": (b"\x1f\x8b" + bytes(50), "gzip"),
    "zstd": (b"\x28\xb5\x2f\xfd" + bytes(50), "zstd"),
    "avro": (b"Obj\x01" + bytes(50), "Avro"),
    "orc": (b"ORC" + bytes(50), "ORC"),
    "arrow file": (b"ARROW1\0\0" + bytes(50), "Arrow"),
    "binary": (bytes(range(256)), "not a Parquet file"),
    "zeros": (bytes(1000), "not a Parquet file"),
    "footer too long": (b"PAR1" + b"x" * 100 + b"\xff\xff\xff\x00PAR1", "longer than the file"),
    "footer of nonsense": (b"PAR1" + b"x" * 100 + b"\x20\x00\x00\x00PAR1", "a.parquet: "),
    "footer of zeros": (b"PAR1" + bytes(100) + b"\x20\x00\x00\x00PAR1", "a.parquet: "),
    "footer of no bytes": (b"PAR1" + bytes(100) + b"\x00\x00\x00\x00PAR1", "a.parquet: "),
    "negative footer": (b"PAR1" + bytes(100) + b"\xff\xff\xff\xffPAR1", "longer than the file"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD_BYTES)
def test_bad_bytes_are_refused_with_their_kind(tmp_path, kind):
    content, word = BAD_BYTES[kind]
    (tmp_path / "a.parquet").write_bytes(content)
    assert word in refusal(tmp_path / "a.parquet")


@pytest.mark.parametrize("kept", [0.01, 0.3, 0.6, 0.9, 0.999])
def test_truncated_parquet(write, kept):
    path = write({"a.parquet": TABLE}) / "a.parquet"
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * kept)])
    assert "truncated" in refusal(path)


class KeepAsIs(encryption.KmsClient):
    def __init__(self, _config):
        super().__init__()

    def wrap_key(self, key_bytes, _master_key):
        return base64.b64encode(key_bytes)

    def unwrap_key(self, wrapped_key, _master_key):
        return base64.b64decode(wrapped_key)


@pytest.mark.parametrize("is_footer_plain", [False, True])
def test_encrypted_parquet_is_refused_without_a_crash(tmp_path, is_footer_plain):
    keys = encryption.EncryptionConfiguration("f", column_keys={"c": ["x"]}, plaintext_footer=is_footer_plain)
    factory = encryption.CryptoFactory(KeepAsIs)
    properties = factory.file_encryption_properties(encryption.KmsConnectionConfig(), keys)
    with pq.ParquetWriter(tmp_path / "a.parquet", TABLE.schema, encryption_properties=properties) as writer:
        writer.write_table(TABLE)
    assert "encrypted" in refusal(tmp_path / "a.parquet")


def test_a_column_name_twice(tmp_path):
    pq.write_table(pa.Table.from_arrays([pa.array([1])] * 3, ["a", "b", "a"]), tmp_path / "a.parquet")
    assert "more than one column is called 'a'" in refusal(tmp_path / "a.parquet")


def test_reading_takes_row_groups_columns_and_the_first_rows(write):
    file = only(write({"a.parquet": TABLE}, row_group_size=30) / "a.parquet")
    table = read(file.location, [1, 2], ["text", "nosuch", "x"], 35)
    assert table.column_names == ["text", "x"]
    assert table["x"].to_pylist() == list(range(30, 65))


def test_a_dotted_column_is_not_a_struct_field(write):
    table = pa.table({"a": [{"b": 1}], "a.b": [2], "a.b.c": [3]})
    file = only(write({"a.parquet": table}) / "a.parquet")
    assert read(file.location, [0], ["a.b"], 1).to_pylist() == [{"a.b": 2}]
    assert read(file.location, [0], ["a"], 1).to_pylist() == [{"a": {"b": 1}}]


# Arrow streams, as Dataset.save_to_disk writes them


@pytest.fixture
def stream(tmp_path):
    datasets.Dataset(TABLE).save_to_disk(str(tmp_path / "saved"))
    return tmp_path / "saved/data-00000-of-00001.arrow"


def test_stream_facts_and_rows(tmp_path):
    with pa.ipc.new_stream(str(tmp_path / "a.arrow"), TABLE.schema) as writer:
        writer.write_table(TABLE, max_chunksize=30)
    file = only(tmp_path / "a.arrow")
    assert [group.num_rows for group in read_facts(file).groups] == [30, 30, 30, 10]
    assert read(file.location, [1, 3], ["x"], 35)["x"].to_pylist() == [*range(30, 60), *range(90, 95)]


@pytest.mark.parametrize("kept", [0.0, 0.01, 0.5, 0.99])
def test_truncated_stream(stream, kept):
    content = stream.read_bytes()
    stream.write_bytes(content[: int(len(content) * kept)])
    assert "truncated" in refusal(stream)


def test_a_damaged_stream(stream):
    content = bytearray(stream.read_bytes())
    content[:64] = b"\xff" * 64
    stream.write_bytes(content)
    refusal(stream)


def test_an_arrow_file_is_not_a_stream(tmp_path):
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), TABLE.schema) as writer:
        writer.write_table(TABLE)
    assert "with a footer" in refusal(tmp_path / "a.arrow")


def test_a_folder_that_vanishes_is_a_problem(write):
    file = only(write({"a.parquet": TABLE}) / "a.parquet")
    (write({}) / "a.parquet").unlink()
    with pytest.raises(InputError, match="FileNotFoundError"):
        read_facts(file)
