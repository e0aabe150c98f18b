"""Arrow columns as NumPy arrays."""

import math
from typing import Any

import numpy as np

from mlx_platform.core.tensors import Array, text_column

_NOT_A_TIME = -(2**63)


def columns_of(batch: Any) -> dict[str, Array]:
    """The columns of a record batch by name [rows]; a column of equally long lists of numbers is [rows, k].

    A missing number is NaN and a missing time NaT; any other column with missing cells holds None there.
    """
    return {name: as_array(batch.column(index)) for index, name in enumerate(batch.schema.names)}


def as_array(column: Any) -> Array:
    """One Arrow array as a NumPy array; see `columns_of`."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_dictionary(kind):
        return _from_dictionary(column)
    if pa.types.is_decimal(kind):
        column, kind = column.cast(pa.float64()), pa.float64()
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return _numbers(column)
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return _moments(column)
    if pa.types.is_boolean(kind) and not column.null_count:
        # Booleans are bits in Arrow, and bytes in NumPy.
        return _numbers(column.cast(pa.uint8())).astype(np.bool_)
    if _is_list(kind):
        matrix = _matrix(column)
        if matrix is not None:
            return matrix
    return text_column(column.to_pylist())


def _is_list(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _from_dictionary(column: Any) -> Array:
    """Equal cells share one object, however large it is."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type.value_type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind)):
        return as_array(column.cast(kind))
    codes = column.indices.cast(pa.int64()).fill_null(-1)
    used = pc.unique(codes.filter(pc.greater_equal(codes, 0)))
    values = text_column([None, *column.dictionary.take(used).to_pylist()])
    places = pc.index_in(codes, value_set=used).cast(pa.int64()).fill_null(-1)
    taken: Array = values[_numbers(places) + 1]
    return taken


def _numbers(column: Any) -> Array:
    import pyarrow as pa

    if not len(column):
        return np.empty(0, dtype=column.type.to_pandas_dtype())
    if column.null_count:
        kind = column.type if pa.types.is_floating(column.type) else pa.float64()
        column = column.cast(kind, safe=False).fill_null(pa.scalar(math.nan, kind))
    # Not `to_numpy`, which imports pandas: half a second before the first row.
    return np.from_dlpack(column)


def _moments(column: Any) -> Array:
    import pyarrow as pa

    kind = column.type
    unit = {pa.date32(): "D", pa.date64(): "ms"}.get(kind) or kind.unit
    steps = column.cast(pa.int32()) if kind == pa.date32() else column
    return _numbers(steps.cast(pa.int64()).fill_null(_NOT_A_TIME)).view(f"datetime64[{unit}]")


def _matrix(column: Any) -> Array | None:
    """Lists of one length, of numbers without gaps, as [rows, k, ...]; None for others."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if column.null_count or not len(column):
        return None
    lengths = pc.unique(pc.list_value_length(column))
    if len(lengths) != 1 or not lengths[0].as_py():
        return None
    flat = column.flatten()
    kind = flat.type
    if _is_list(kind):
        inner = _matrix(flat)
    elif flat.null_count or not (
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    ):
        return None
    else:
        inner = as_array(flat)
    return None if inner is None else inner.reshape(len(column), lengths[0].as_py(), *inner.shape[1:])


def joined(parts: list[Array]) -> Array:
    """Batches of one column as one array; rows of different shapes stay objects of their own."""
    if len(parts) == 1:
        return parts[0]
    kinds = {part.dtype.kind for part in parts}
    alike = len({part.shape[1:] for part in parts}) == 1
    if alike and (len(kinds) == 1 or kinds <= set("iufb")) and not (kinds > {"b"}):
        return np.concatenate(parts)
    return text_column([cell for part in parts for cell in part.tolist()])
