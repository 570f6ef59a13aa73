import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchpaged.dataset.promotion import needs_check, promote

TEXT, LARGE = pa.string(), pa.large_string()
CATEGORY = pa.dictionary(pa.int8(), TEXT)


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        (TEXT, TEXT, TEXT),
        (pa.null(), CATEGORY, CATEGORY),
        (TEXT, LARGE, LARGE),
        (TEXT, pa.string_view(), LARGE),
        (CATEGORY, TEXT, TEXT),
        (CATEGORY, LARGE, LARGE),
        (CATEGORY, pa.dictionary(pa.int32(), TEXT), pa.dictionary(pa.int32(), TEXT)),
        (pa.binary(), pa.binary(4), pa.large_binary()),
        (pa.list_(TEXT), pa.large_list(TEXT), pa.large_list(TEXT)),
        (pa.list_(pa.null()), pa.list_(TEXT), pa.list_(TEXT)),
        (pa.list_(CATEGORY), pa.list_(TEXT), pa.list_(TEXT)),
        (pa.list_(pa.int8(), 2), pa.list_(pa.int8(), 3), pa.list_(pa.int8())),
        (pa.list_(pa.int8(), 2), pa.list_(pa.int16(), 2), pa.list_(pa.int16(), 2)),
        (pa.int8(), pa.int64(), pa.int64()),
        (pa.uint8(), pa.int8(), pa.int16()),
        (pa.uint32(), pa.int32(), pa.int64()),
        (pa.int8(), pa.float32(), pa.float32()),
        (pa.int32(), pa.float32(), pa.float64()),
        (pa.int64(), pa.float32(), pa.float64()),
        (pa.float16(), pa.float32(), pa.float32()),
        (pa.decimal128(5, 2), pa.decimal128(7, 3), pa.decimal128(7, 3)),
        (pa.int32(), pa.decimal128(5, 2), pa.decimal128(12, 2)),
        (pa.timestamp("s", "UTC"), pa.timestamp("ns", "UTC"), pa.timestamp("ns", "UTC")),
        (pa.date32(), pa.date64(), pa.date64()),
        (pa.map_(TEXT, pa.int8()), pa.map_(TEXT, pa.int16()), pa.map_(TEXT, pa.int16())),
        (pa.uuid(), pa.binary(16), pa.binary(16)),
    ],
    ids=str,
)
def test_promotes_both_ways(left, right, expected):
    if not pa.types.is_decimal(expected) or pa.types.is_decimal(left):
        assert promote(left, right) == expected
    assert promote(left, right) == promote(right, left)


def test_structs_take_all_fields_and_nulls_where_one_lacks_them():
    left = pa.struct([pa.field("a", TEXT, nullable=False), pa.field("only_left", TEXT, nullable=False)])
    merged = promote(left, pa.struct([pa.field("b", pa.int8()), pa.field("a", LARGE, nullable=False)]))
    assert [field.name for field in merged] == ["a", "only_left", "b"]
    assert merged.field("a").type == LARGE
    assert [field.nullable for field in merged] == [False, True, True]


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (TEXT, pa.int32()),
        (TEXT, pa.binary()),
        (pa.bool_(), pa.int8()),
        (pa.list_(TEXT), TEXT),
        (pa.list_(TEXT), pa.list_(pa.int8())),
        (pa.struct([("a", TEXT)]), pa.struct([("a", pa.int8())])),
        (pa.struct([("a", TEXT), ("a", TEXT)]), pa.struct([("a", TEXT), ("b", TEXT)])),
        (pa.timestamp("s", "UTC"), pa.timestamp("s")),
        (pa.timestamp("s", "UTC"), pa.timestamp("s", "Europe/Paris")),
        (pa.date32(), pa.timestamp("s")),
        (pa.decimal128(5, 2), pa.float64()),
        (pa.map_(TEXT, TEXT), pa.map_(TEXT, pa.int8())),
        (CATEGORY, pa.dictionary(pa.int8(), pa.int64())),
    ],
    ids=str,
)
def test_refuses_what_would_change_meaning(left, right):
    assert promote(left, right) is None
    assert promote(right, left) is None


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        (pa.int64(), pa.float64(), True),
        (pa.uint64(), pa.int64(), True),
        (pa.int32(), pa.float64(), False),
        (pa.int64(), pa.int64(), False),
        (pa.int64(), pa.decimal128(21, 2), False),
        (pa.timestamp("s"), pa.timestamp("ns"), True),
        (TEXT, LARGE, False),
        (pa.list_(pa.int64()), pa.list_(pa.float64()), True),
        (pa.map_(TEXT, pa.int64()), pa.map_(TEXT, pa.float64()), True),
        (pa.struct([("a", pa.int64())]), pa.struct([("a", pa.float64()), ("b", pa.float64())]), True),
        (pa.struct([("a", pa.int64())]), pa.struct([("a", pa.int64()), ("b", pa.float64())]), False),
        (pa.dictionary(pa.int8(), pa.int64()), pa.float64(), True),
    ],
    ids=str,
)
def test_says_which_values_must_be_looked_at(source, target, expected):
    assert needs_check(source, target) is expected


LEAVES = st.sampled_from(
    [pa.null(), TEXT, LARGE, CATEGORY, pa.int8(), pa.uint16(), pa.int64(), pa.float32(), pa.float64(), pa.binary()]
)
TYPES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        inner.map(pa.list_),
        inner.map(pa.large_list),
        st.dictionaries(st.sampled_from("abc"), inner, max_size=2).map(lambda fields: pa.struct(list(fields.items()))),
    ),
    max_leaves=4,
)


@settings(deadline=None)
@given(TYPES, TYPES)
def test_promotion_is_symmetric_idempotent_and_castable(left, right):
    merged = promote(left, right)
    other = promote(right, left)
    assert (merged is None) == (other is None)
    if merged is None:
        return
    assert promote(merged, left) == merged and promote(merged, right) == merged
    for kind in (left, right):
        assert pa.array([None], kind).cast(merged).null_count == 1
