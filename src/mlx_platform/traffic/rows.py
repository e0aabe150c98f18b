"""Records back into columns: many requests of one form become one batch of arrays."""

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mlx_platform.core.errors import UsageError
from mlx_platform.core.tensors import NUMPY_TYPES, Array, decode_array, text_column
from mlx_platform.traffic.log import LogStats
from mlx_platform.traffic.record import Encoded, Record

BATCH_ROWS = 16_384

_Form = tuple[tuple[Any, ...], ...]  # name, datatype and further dimensions of each array
_NUMBERS = {int, float, bool}
_WHOLE = {int}


@dataclass(frozen=True, slots=True)
class RowBatch:
    """Rows of `records` requests to one endpoint, in the order they were served; `apart` as was asked.

    `latency_ms` and `request_rows` [rows] are those of the request that a row came in; NaN where the log does
    not say how long it took.
    """

    endpoint: str
    inputs: dict[str, Array]
    outputs: dict[str, Array]
    records: int
    rows: int
    latency_ms: Array
    request_rows: Array
    apart: Any = None


@dataclass(slots=True)
class _Group:
    """Requests of one form, their cells row by row in flat lists.

    Flat, because a nested document per request costs more to keep, in memory and in collecting garbage,
    than to read.
    """

    endpoint: str
    sides: tuple[_Form, _Form]
    apart: Any
    cells: tuple[list[list[Any]], list[list[Any]]] = field(init=False)
    records: int = 0
    rows: int = 0
    latencies: list[float] = field(default_factory=list)
    heights: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cells = ([[] for _ in self.sides[0]], [[] for _ in self.sides[1]])

    def batch(self) -> RowBatch:
        inputs, outputs = (
            {form[0]: _array(form, cells, self.rows) for form, cells in zip(forms, columns, strict=True)}
            for forms, columns in zip(self.sides, self.cells, strict=True)
        )
        return RowBatch(
            self.endpoint,
            inputs,
            outputs,
            self.records,
            self.rows,
            np.repeat(np.asarray(self.latencies, dtype=np.float64), self.heights),
            np.repeat(np.asarray(self.heights, dtype=np.int64), self.heights),
            self.apart,
        )


def row_batches(
    records: Iterable[Record],
    stats: LogStats,
    *,
    batch_rows: int = BATCH_ROWS,
    apart: Callable[[Record], Hashable] | None = None,
) -> Iterator[RowBatch]:
    """Gather records whose columns have the same names, types and shapes.

    Records that hold no rows are passed over; one whose arrays do not fit together counts as unreadable.

    Args:
        records: of any endpoints.
        stats: of the log they come from.
        batch_rows: rows that are gathered before any batch is given out; bounds the memory.
        apart: records of which this differs never share a batch.
    """
    groups: dict[tuple[Hashable, ...], _Group] = {}
    waiting = 0
    for record in records:
        try:
            forms, columns, height = _read(record)
        except (UsageError, LookupError, TypeError, ValueError, AttributeError):
            stats.unreadable += 1
            continue
        if height == 0:
            continue
        key = (record.endpoint, *forms, own := apart(record) if apart else None)
        group = groups.get(key)
        if group is None:
            group = groups[key] = _Group(record.endpoint, forms, own)
        for kept, more in zip(group.cells, columns, strict=True):
            for cells, new in zip(kept, more, strict=True):
                cells.extend(new)
        group.records += 1
        group.latencies.append(record.timings_ms.get("total", math.nan))
        group.heights.append(height)
        group.rows += height
        waiting += height
        if waiting >= batch_rows:
            yield from (each.batch() for each in groups.values())
            groups, waiting = {}, 0
    yield from (each.batch() for each in groups.values())


def _read(record: Record) -> tuple[tuple[_Form, _Form], tuple[list[list[Any]], list[list[Any]]], int]:
    """The form of a record's arrays, their cells, and how many rows they have."""
    heights: set[int] = set()
    inputs, outputs = (_side(side, heights) for side in (record.inputs, record.outputs))
    if len(heights) > 1:
        raise UsageError("A record's arrays differ in their number of rows.")
    return (inputs[0], outputs[0]), (inputs[1], outputs[1]), heights.pop() if heights else 0


def _side(side: Encoded, heights: set[int]) -> tuple[_Form, list[list[Any]]]:
    forms, columns = [], []
    for name, encoded in side.items():
        shape, datatype = encoded["shape"], encoded["datatype"]
        cells = _cells(encoded, datatype)
        if (
            not _WHOLE.issuperset(map(type, shape))
            or min(shape) < 0
            or len(cells) != (shape[0] if len(shape) == 1 else math.prod(shape))
        ):
            raise UsageError("A record holds an array whose data do not fill its shape.")
        heights.add(shape[0])
        forms.append((name, datatype, *shape[1:]))
        columns.append(cells)
    return tuple(forms), columns


def _cells(encoded: Mapping[str, Any], datatype: str) -> list[Any]:
    cells = encoded.get("data")
    if cells is None:
        decoded: list[Any] = decode_array(encoded).reshape(-1).tolist()
        return decoded
    if (
        type(cells) is not list
        or datatype not in NUMPY_TYPES
        or (datatype != "BYTES" and not _NUMBERS.issuperset(map(type, cells)))
    ):
        raise UsageError("A record holds an array of no known type, or other cells than it says.")
    return cells


def _array(form: tuple[Any, ...], cells: list[Any], rows: int) -> Array:
    dtype = np.dtype(NUMPY_TYPES[form[1]])
    if dtype.kind == "O":
        return text_column(cells).reshape(rows, *form[2:])
    try:
        return np.asarray(cells, dtype=dtype).reshape(rows, *form[2:])
    except OverflowError:
        # A number that its type cannot hold: no server wrote it, and it must not cost the others.
        return text_column(cells).reshape(rows, *form[2:])
