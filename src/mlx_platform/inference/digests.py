"""A short digest of every row, to find the rows that two data files share."""

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from mlx_platform.core.tensors import Array, Columns, row_count

Digests = npt.NDArray[np.uint64]

_NOT_A_NUMBER = 1 << 63
_MISSING = int(np.array(np.nan, dtype=np.float32).view(np.uint32))


def row_digests(columns: Columns) -> Digests:
    """The BLAKE2b of each row's values [rows], whatever the order of the columns.

    A number counts by its value in single precision, whatever its type: models take single precision, so the
    rows of a CSV and of a Parquet file must look the same. Missing values are equal to each other. Two
    different rows have the same digest with a probability of 5e-20; among a million rows against a million
    that makes 5e-8.
    """
    rows = row_count(columns)
    codes = np.empty((rows, len(columns)), dtype="<u8")
    for place, name in enumerate(sorted(columns)):
        codes[:, place] = _codes(columns[name])
    return _each_row(codes)


def _each_row(table: Array) -> Digests:
    """Digest every row of a matrix."""
    width = table.shape[1] * table.itemsize
    content = memoryview(np.ascontiguousarray(table).tobytes())
    digest: Callable[..., Any] = hashlib.blake2b
    found = b"".join(
        digest(content[start : start + width], digest_size=8).digest()
        for start in range(0, len(table) * width, width)
    )
    return np.frombuffer(found, dtype="<u8").astype(np.uint64)


def _codes(column: Array) -> Digests:
    """Every cell as an integer; those of texts and lists never meet those of numbers."""
    if column.dtype.kind in "iufb":
        if column.ndim == 1:
            return _bits(column).astype(np.uint64)
        return _each_row(_bits(column).reshape(len(column), -1)) | np.uint64(_NOT_A_NUMBER)
    if column.dtype.kind == "M":
        return column.astype("datetime64[ns]").astype(np.int64).view(np.uint64) | np.uint64(_NOT_A_NUMBER)
    seen: dict[Any, int] = {}
    return np.fromiter((_code(cell, seen) for cell in column.tolist()), dtype=np.uint64, count=len(column))


def _bits(numbers: Array) -> Array:
    with np.errstate(over="ignore"):
        # Adding zero turns -0.0 into 0.0.
        single = np.ascontiguousarray(numbers, dtype=np.float32) + np.float32(0)
    single[np.isnan(single)] = np.nan
    return single.view(np.uint32)


def _code(cell: Any, seen: dict[Any, int]) -> int:
    if isinstance(cell, str | bytes):
        if cell not in seen:
            seen[cell] = _digest(cell.encode("utf-8", "surrogatepass") if isinstance(cell, str) else cell)
        return seen[cell]
    if cell is None:
        return _MISSING
    if isinstance(cell, bool | int | float):
        return int(_bits(np.array([_number(cell)]))[0])
    if isinstance(cell, list | np.ndarray):
        values = np.asarray(cell) if _is_numeric(cell) else None
        if values is not None and values.dtype.kind in "iufb":
            return _digest(_bits(values.reshape(-1)).tobytes())
    return _digest(repr(cell).encode("utf-8", "surrogatepass"))


def _number(cell: float) -> float:
    try:
        return float(cell)
    except OverflowError:
        return float("inf")


def _is_numeric(cell: Any) -> bool:
    try:
        return np.asarray(cell).dtype.kind in "iufb"
    except ValueError:
        return False


def _digest(content: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little") | _NOT_A_NUMBER
