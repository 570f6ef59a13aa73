"""Arrow columns to Python values, one per row, for templates and chat messages.

A value that Python cannot hold (bytes in a string column that are not UTF-8, a date past the year 9999) becomes a
RowError for its row; the other rows of the column keep their values.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from batchpaged.errors import RowError


def column_values(column: pa.Array | pa.ChunkedArray, name: str) -> list[Any]:
    """One Python value (or RowError) per row; a null is None."""
    try:
        return column.to_pylist()
    except Exception:  # which row it was is not said, so look at each
        return [_value(scalar, name) for scalar in column]


def _value(scalar: pa.Scalar, name: str) -> Any:
    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        return RowError(f"column {name!r}: bytes that are not valid UTF-8")
    except Exception as error:  # the reasons are as many as the types
        return RowError(f"column {name!r}: a {scalar.type} that cannot be read ({type(error).__name__})")


def has_nulls(array: pa.Array | pa.ChunkedArray) -> bool:
    """True if a null, or a float that is no number, may be anywhere inside, in nested values too."""
    if isinstance(array, pa.ChunkedArray):
        return any(has_nulls(chunk) for chunk in array.chunks)
    if array.null_count:
        return True
    kind = array.type
    if pt.is_floating(kind):
        return pt.is_float16(kind) or bool(pc.any(pc.is_nan(array)).as_py())
    if pt.is_map(kind):
        return has_nulls(array.keys) or has_nulls(array.items)
    if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        return has_nulls(array.flatten())
    if pt.is_struct(kind):
        return any(has_nulls(child) for child in array.flatten())
    if pt.is_dictionary(kind):
        return has_nulls(array.dictionary)
    return pt.is_nested(kind)  # any other nesting: assume so
