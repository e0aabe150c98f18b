"""Records back into columns: many requests of one form become one batch of arrays."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from mlx_platform.core.errors import UsageError
from mlx_platform.core.tensors import NUMPY_TYPES, Array, decode_array, row_count
from mlx_platform.traffic.log import LogStats
from mlx_platform.traffic.record import Encoded, Record

BATCH_ROWS = 16_384

Signature = tuple[
    str, tuple[tuple[str, str, tuple[int, ...]], ...], tuple[tuple[str, str, tuple[int, ...]], ...]
]


@dataclass(frozen=True, slots=True)
class RowBatch:
    """Rows of `records` requests to one endpoint, in the order they were served."""

    endpoint: str
    inputs: dict[str, Array]
    outputs: dict[str, Array]
    records: tuple[Record, ...]
    rows: int


def row_batches(
    records: Iterable[Record], stats: LogStats, *, batch_rows: int = BATCH_ROWS
) -> Iterator[RowBatch]:
    """Gather records whose columns have the same names, types and shapes.

    Records that hold no rows are passed over; one whose arrays do not fit together counts as unreadable.

    Args:
        records: of any endpoints.
        stats: of the log they come from.
        batch_rows: rows that are gathered before any batch is given out; bounds the memory.
    """
    waiting: dict[Signature, list[Record]] = {}
    rows = 0
    for record in records:
        try:
            signature, height = _signature(record)
        except (UsageError, KeyError, TypeError, ValueError, AttributeError):
            stats.unreadable += 1
            continue
        if height == 0:
            continue
        waiting.setdefault(signature, []).append(record)
        rows += height
        if rows >= batch_rows:
            yield from _batches(waiting, stats)
            waiting, rows = {}, 0
    yield from _batches(waiting, stats)


def _signature(record: Record) -> tuple[Signature, int]:
    """The form of a record's arrays, and their number of rows."""
    heights = set()
    forms = []
    for side in (record.inputs, record.outputs):
        form = []
        for name, encoded in side.items():
            height, *rest = encoded["shape"]
            if encoded["datatype"] not in NUMPY_TYPES or min(encoded["shape"]) < 0:
                raise UsageError("A record holds an array of no known type or shape.")
            if "data" in encoded and len(encoded["data"]) != math.prod(encoded["shape"]):
                raise UsageError("A record holds an array whose data do not fill its shape.")
            heights.add(height)
            form.append((name, encoded["datatype"], tuple(rest)))
        forms.append(tuple(form))
    if len(heights) > 1:
        raise UsageError("A record's arrays differ in their number of rows.")
    return (record.endpoint, forms[0], forms[1]), heights.pop() if heights else 0


def _batches(waiting: Mapping[Signature, list[Record]], stats: LogStats) -> Iterator[RowBatch]:
    for (endpoint, *_), records in waiting.items():
        try:
            yield _batch(endpoint, records)
        except UsageError:
            # One of them cannot be read with the others: take them one by one.
            readable = [record for record in records if _is_readable(record)]
            stats.unreadable += len(records) - len(readable)
            if readable:
                yield _batch(endpoint, readable, one_by_one=True)


def _is_readable(record: Record) -> bool:
    try:
        for encoded in chain(record.inputs.values(), record.outputs.values()):
            decode_array(encoded)
    except UsageError:
        return False
    return True


def _batch(endpoint: str, records: list[Record], *, one_by_one: bool = False) -> RowBatch:
    inputs = _join([record.inputs for record in records], one_by_one=one_by_one)
    outputs = _join([record.outputs for record in records], one_by_one=one_by_one)
    return RowBatch(endpoint, inputs, outputs, tuple(records), row_count(inputs or outputs))


def _join(sides: list[Encoded], *, one_by_one: bool) -> dict[str, Array]:
    return {name: _concatenate([side[name] for side in sides], one_by_one=one_by_one) for name in sides[0]}


def _concatenate(parts: list[Mapping[str, Any]], *, one_by_one: bool) -> Array:
    """One array of many encoded ones that differ only in their number of rows."""
    dtype = np.dtype(NUMPY_TYPES[parts[0]["datatype"]])
    if one_by_one or dtype.kind == "O" or any("data" not in part for part in parts):
        return np.concatenate([decode_array(part) for part in parts])
    # One conversion for all requests: most of them have a single row, where NumPy costs more than it saves.
    flat = list(chain.from_iterable(part["data"] for part in parts))
    try:
        return np.asarray(flat, dtype=dtype).reshape(-1, *parts[0]["shape"][1:])
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"A tensor cannot be read: {error}.") from error
