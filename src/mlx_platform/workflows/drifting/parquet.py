"""Parquet read as counting needs it: numbers as arrays, texts as counts, no Python object per cell."""

import math
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from mlx_platform.core.errors import UndecidedError, UsageError
from mlx_platform.core.tensors import Array
from mlx_platform.core.text import first_line
from mlx_platform.drift.values import Categories, Column, Missing, categories_of

SUFFIXES = {".parquet", ".pq"}
BATCH_ROWS = 131_072


@contextmanager
def open_table(path: Path) -> Iterator[Any]:
    """Open a Parquet file of plain columns; a damaged page is an error, not other numbers.

    Raises:
        UsageError: it cannot be read.
        UndecidedError: it has no rows.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, page_checksum_verification=True, pre_buffer=False) as file:
            if not file.metadata.num_rows:
                raise UndecidedError(f"{path} has columns, but no rows.")
            yield file
    except (pa.ArrowException, OSError) as error:
        raise UsageError(f"{path} cannot be read: {first_line(error)}.") from error


def is_plain(path: Path) -> bool:
    """Whether a file is Parquet whose columns all hold one value per row, under names of their own."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if path.suffix.lower() not in SUFFIXES or not path.is_file():
        return False
    try:
        schema = pq.read_schema(path)
    except (pa.ArrowException, OSError):
        return False
    names = schema.names
    return len(set(names)) == len(names) and not any(pa.types.is_nested(kind) for kind in schema.types)


def columns(file: Any, leave_out: Collection[str]) -> Iterator[tuple[str, Column]]:
    """Whole columns, one at a time, in file order."""
    for name in file.schema_arrow.names:
        if name not in leave_out:
            yield name, as_column(file.read(columns=[name]).column(0))


def chunks(file: Any, leave_out: Collection[str]) -> Iterator[tuple[str, Column]]:
    """Every column in turn, some rows at a time: memory grows neither with the rows nor with the columns."""
    import pyarrow as pa

    for name in file.schema_arrow.names:
        if name not in leave_out:
            for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=[name]):
                yield name, as_column(pa.chunked_array([batch.column(0)]))


def as_column(column: Any) -> Column:
    """A chunked Arrow column as numbers [rows], or as the counts of its categories."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_decimal(kind):
        column, kind = column.cast(pa.float64()), pa.float64()
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return _numbers(column, kind)
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        # The number that stands for a missing time in NumPy.
        moments = column.cast(pa.timestamp("ns"), safe=False).cast(pa.int64()).fill_null(-(2**63))
        return _joined(moments).view("datetime64[ns]")
    if pa.types.is_null(kind):
        return Categories({}, Missing(null=len(column)))
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
    counted = column.value_counts()
    return categories_of(
        zip(counted.field("values").to_pylist(), counted.field("counts").to_pylist(), strict=True)
    )


def _numbers(column: Any, kind: Any) -> Array:
    import pyarrow as pa

    if column.null_count:
        kind = kind if pa.types.is_floating(kind) else pa.float64()
        column = column.cast(kind).fill_null(pa.scalar(math.nan, kind))
    return _joined(column)


def _joined(column: Any) -> Array:
    # Not `to_numpy`, which imports pandas: half a second before the first row.
    pieces = [np.from_dlpack(chunk) for chunk in column.chunks if len(chunk)]
    return np.concatenate(pieces) if pieces else np.empty(0)
