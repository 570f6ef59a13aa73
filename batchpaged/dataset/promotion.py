"""Which type holds every value of two types: the rules by which shards with different schemas become one.

A promotion never changes a value: widths grow, `string` becomes `large_string`, a dictionary meets plain strings as
plain strings, lists and structs follow their children. Where the types alone cannot promise that (a 64-bit integer
beside a double, a coarse timestamp beside a finer one), `needs_check` says so and the values are looked at once, at the
door. Pure functions over pyarrow types; nothing is read.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.types as pt


def promote(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """The type that holds every value of both, or None when there is none. `left` wins where both would do."""
    if left == right or pt.is_null(right):
        return left
    if pt.is_null(left):
        return right
    for is_kind, merge in _RULES:
        if is_kind(left) and is_kind(right):
            return merge(left, right)
    return _promote_wrapped(left, right)


def needs_check(source: pa.DataType, target: pa.DataType) -> bool:
    """True if some value of `source` might not fit `target`, which came out of `promote`."""
    return any(_may_not_fit(a, b) for a, b in _leaf_pairs(source, target))


def _may_not_fit(source: pa.DataType, target: pa.DataType) -> bool:
    if source == target:
        return False
    is_wide_integer = pt.is_int64(source) or pt.is_uint64(source)
    return (is_wide_integer and not pt.is_decimal(target)) or pt.is_temporal(source)


def _leaf_pairs(source: pa.DataType, target: pa.DataType) -> Iterator[tuple[pa.DataType, pa.DataType]]:
    if pt.is_dictionary(source):
        source = source.value_type
    if pt.is_dictionary(target):
        target = target.value_type
    if _is_list(source) and _is_list(target):
        yield from _leaf_pairs(source.value_type, target.value_type)
    elif pt.is_map(source) and pt.is_map(target):
        yield from _leaf_pairs(source.key_type, target.key_type)
        yield from _leaf_pairs(source.item_type, target.item_type)
    elif pt.is_struct(source) and pt.is_struct(target):
        for field in source:
            yield from _leaf_pairs(field.type, target.field(field.name).type)
    else:
        yield source, target


def _promote_wrapped(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """A dictionary beside plain values becomes plain values; an extension type beside its storage, the storage."""
    for one, other in ((left, right), (right, left)):
        if pt.is_dictionary(one):
            return promote(one.value_type, other)
        if isinstance(one, pa.BaseExtensionType):
            return promote(one.storage_type, other)
    return None


def _promote_dictionaries(left: pa.DictionaryType, right: pa.DictionaryType) -> pa.DataType | None:
    index, value = promote(left.index_type, right.index_type), promote(left.value_type, right.value_type)
    if value is None or index is None:
        return None
    return pa.dictionary(index, value, ordered=left.ordered and right.ordered)


def _promote_integers(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    if pt.is_signed_integer(left) == pt.is_signed_integer(right):
        return max(left, right, key=lambda kind: kind.bit_width)
    signed, unsigned = (left, right) if pt.is_signed_integer(left) else (right, left)
    return _SIGNED[min(64, max(signed.bit_width, 2 * unsigned.bit_width))]


def _promote_numbers(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """At least one is a float; an integer of n bits needs the next wider float to keep all its digits."""
    return _FLOATS[max(_float_width(left), _float_width(right))]


def _float_width(kind: pa.DataType) -> int:
    return kind.bit_width if pt.is_floating(kind) else min(64, 2 * kind.bit_width)


def _promote_lists(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    value = promote(left.value_type, right.value_type)
    if value is None:
        return None
    field = left.value_field.with_type(value).with_nullable(left.value_field.nullable or right.value_field.nullable)
    if pt.is_fixed_size_list(left) and pt.is_fixed_size_list(right) and left.list_size == right.list_size:
        return pa.list_(field, left.list_size)
    return pa.large_list(field) if pt.is_large_list(left) or pt.is_large_list(right) else pa.list_(field)


def _promote_maps(left: pa.MapType, right: pa.MapType) -> pa.DataType | None:
    key, item = promote(left.key_type, right.key_type), promote(left.item_type, right.item_type)
    return None if key is None or item is None else pa.map_(key, item)


def _promote_structs(left: pa.StructType, right: pa.StructType) -> pa.DataType | None:
    fields = {field.name: field for field in left}
    if len(fields) < left.num_fields or len({field.name for field in right}) < right.num_fields:
        return None
    for field in right:
        merged = promote_fields(fields[field.name], field) if field.name in fields else field.with_nullable(True)
        if merged is None:
            return None
        fields[field.name] = merged
    only_left = set(fields) - {field.name for field in right}
    return pa.struct([f.with_nullable(True) if f.name in only_left else f for f in fields.values()])


def promote_fields(left: pa.Field, right: pa.Field) -> pa.Field | None:
    """`left` with the promoted type, nullable if either is; None when the types do not go together."""
    kind = promote(left.type, right.type)
    return None if kind is None else left.with_type(kind).with_nullable(left.nullable or right.nullable)


def _promote_by_arrow(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """Decimals, dates, times, durations and timestamps (of one time zone): pyarrow's own promotion loses nothing."""
    try:
        schemas = [pa.schema([("x", left)]), pa.schema([("x", right)])]
        return pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return None


def _is_text(kind: pa.DataType) -> bool:
    return pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind)


def _is_bytes(kind: pa.DataType) -> bool:
    return pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_binary_view(kind) or pt.is_fixed_size_binary(kind)


def _is_list(kind: pa.DataType) -> bool:
    return pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind)


def _is_number(kind: pa.DataType) -> bool:
    return pt.is_integer(kind) or pt.is_floating(kind)


def _is_exact_number(kind: pa.DataType) -> bool:
    return pt.is_integer(kind) or pt.is_decimal(kind)


_SIGNED = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}
_FLOATS = {16: pa.float16(), 32: pa.float32(), 64: pa.float64()}
_RULES = (
    (pt.is_integer, _promote_integers),
    (_is_number, _promote_numbers),
    (_is_exact_number, _promote_by_arrow),
    (_is_text, lambda left, right: pa.large_string()),
    (_is_bytes, lambda left, right: pa.large_binary()),
    (pt.is_dictionary, _promote_dictionaries),
    (_is_list, _promote_lists),
    (pt.is_map, _promote_maps),
    (pt.is_struct, _promote_structs),
    (pt.is_timestamp, _promote_by_arrow),
    (pt.is_date, _promote_by_arrow),
    (pt.is_time, _promote_by_arrow),
    (pt.is_duration, _promote_by_arrow),
)
