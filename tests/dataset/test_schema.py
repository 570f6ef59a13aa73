import datasets
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchpaged.dataset.schema import OUTPUT_COLUMNS, check_no_clash, conform, unify
from batchpaged.errors import InputError

TEXT = pa.string()


def test_output_columns_are_the_contract():
    assert OUTPUT_COLUMNS.names == [
        "completion",
        "finish_reason",
        "prompt_tokens",
        "cached_tokens",
        "completion_tokens",
        "status",
        "error",
        "prompt_hash",
    ]
    assert {str(f.type) for f in OUTPUT_COLUMNS if f.name.endswith("_tokens")} == {"int32"}


def test_types_that_agree_are_kept_exactly():
    schema = pa.schema([("a", pa.dictionary(pa.int8(), TEXT)), ("b", pa.timestamp("us", "Asia/Tokyo"))])
    assert unify([schema, schema]).equals(schema)


def test_columns_come_in_order_of_appearance_and_missing_ones_become_nullable():
    first = pa.schema([pa.field("a", TEXT, nullable=False), pa.field("b", TEXT, nullable=False)])
    unified = unify([first, pa.schema([pa.field("c", pa.int8(), nullable=False), pa.field("a", TEXT, nullable=False)])])
    assert unified.names == ["a", "b", "c"]
    assert [field.nullable for field in unified] == [False, True, True]


def test_a_conflict_names_column_both_types_and_both_files():
    schemas = [pa.schema([("a", TEXT), ("b", TEXT)]), pa.schema([("a", pa.int8()), ("b", pa.bool_())])]
    with pytest.raises(InputError) as caught:
        unify(schemas, ["x.parquet", "y.parquet"])
    message = str(caught.value)
    for word in ("'a'", "'b'", "string", "int8", "bool", "x.parquet", "y.parquet"):
        assert word in message


def test_a_conflict_names_the_file_that_made_the_type():
    schemas = [pa.schema([("a", kind)]) for kind in (pa.null(), pa.int8(), TEXT)]
    with pytest.raises(InputError, match=r"int8 in second but string in third"):
        unify(schemas, ["first", "second", "third"])


def test_clashes_are_all_named():
    check_no_clash(pa.schema([("question", TEXT), ("Status", TEXT)]))
    with pytest.raises(InputError, match="'status', 'completion'"):
        check_no_clash(pa.schema([("status", TEXT), ("x", TEXT), ("completion", TEXT)]))


def test_metadata_survive_where_all_files_agree():
    schemas = [pa.schema([("a", TEXT)], metadata={"same": "1", "differs": str(i), "pandas": "{}"}) for i in range(2)]
    assert unify(schemas).metadata == {b"same": b"1", b"pandas": b"{}"}


def test_pandas_metadata_go_when_a_type_changed():
    metadata = {"pandas": "{}", "huggingface": "{}"}
    schemas = [pa.schema([("a", kind)], metadata=metadata) for kind in (TEXT, pa.large_string())]
    assert unify(schemas).metadata == {b"huggingface": b"{}"}


def test_field_metadata_do_not_stand_in_the_way():
    schemas = [pa.schema([pa.field("a", TEXT, metadata={"PARQUET:field_id": str(i)})]) for i in range(2)]
    assert unify(schemas).field("a").metadata == {b"PARQUET:field_id": b"0"}


def test_real_pandas_and_hugging_face_metadata(tmp_path):
    pd.DataFrame({"a": ["x"], "n": pd.Categorical(["u"])}).to_parquet(tmp_path / "p.parquet")
    pd.DataFrame({"a": ["x", None], "n": pd.Categorical(["v", "w"])}).to_parquet(tmp_path / "q.parquet")
    datasets.Dataset.from_dict({"a": ["x"]}).to_parquet(str(tmp_path / "h.parquet"))
    schemas = [pq.read_schema(tmp_path / f"{name}.parquet") for name in "pqh"]
    unified = unify(schemas)
    assert unified.names == ["a", "n"]
    assert pa.types.is_dictionary(unify(schemas[:2]).field("n").type)


def test_conform_fills_casts_and_orders():
    schema = pa.schema([("b", pa.large_string()), ("missing", pa.list_(TEXT)), ("a", pa.int64())])
    table = conform(pa.table({"a": pa.array([1, 2], pa.int8()), "b": ["x", None]}), schema)
    assert table.schema.equals(schema)
    assert table.to_pylist() == [{"b": "x", "missing": None, "a": 1}, {"b": None, "missing": None, "a": 2}]


@pytest.mark.parametrize(
    "kind", [pa.uuid(), pa.json_(), pa.map_(TEXT, TEXT), pa.dictionary(pa.int8(), TEXT), pa.null()]
)
def test_conform_fills_any_type_with_nulls(kind):
    table = conform(pa.table({"a": [1]}), pa.schema([("a", pa.int64()), ("x", kind)]))
    assert table["x"].to_pylist() == [None]


COLUMNS = {
    "text": [["x", None, "é"], [TEXT, pa.large_string(), pa.dictionary(pa.int32(), TEXT), pa.string_view()]],
    "words": [[["x"], [], None], [pa.list_(TEXT), pa.large_list(TEXT), pa.list_(pa.large_string())]],
    "number": [[1, None, 127], [pa.int8(), pa.int32(), pa.int64(), pa.uint16(), pa.float32(), pa.float64()]],
    "struct": [[{"a": 1}, None, {"a": None}], [pa.struct([("a", pa.int8())]), pa.struct([("a", pa.int64())])]],
}
SHARDS = st.fixed_dictionaries({name: st.none() | st.sampled_from(kinds) for name, (_, kinds) in COLUMNS.items()})


@settings(deadline=None)
@given(st.lists(SHARDS, min_size=1, max_size=4))
def test_shards_round_trip_through_unification_and_parquet(shards):
    """Any mixture of layouts of the same values comes out as those values, null where a shard lacks the column."""
    tables = []
    for kinds in shards:
        columns = {name: pa.array(COLUMNS[name][0], kind) for name, kind in kinds.items() if kind is not None}
        tables.append(pa.table({"id": [0, 1, 2], **columns}))
    schema = unify([table.schema for table in tables])
    for table in tables:
        conformed = conform(table, schema)
        sink = pa.BufferOutputStream()
        pq.write_table(conformed, sink)
        read = pq.read_table(pa.BufferReader(sink.getvalue()))
        assert conformed.schema.equals(schema) and read.schema.equals(schema)
        for name in schema.names:
            expected = table[name].to_pylist() if name in table.column_names else [None] * 3
            assert read[name].to_pylist() == expected
