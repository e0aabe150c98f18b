"""Cells as the arrays of a record: the same form that `core.tensors.encode_array` writes."""

import base64
import binascii
import math
from typing import Any

import numpy as np

from mlx_platform.core.errors import UsageError
from mlx_platform.core.tensors import NUMPY_TYPES, Array, datatype_of

Encoded = dict[str, Any]
_INT64 = 2**63


def encode_cells(cells: list[Any]) -> Encoded:
    """A column of JSON cells, one for each row, as an array of the narrowest type that holds all of them.

    Whole numbers become INT64, numbers FP64, truth values BOOL, lists of numbers of one length an array of
    more dimensions; everything else stays as it is, as BYTES.
    """
    kinds = set(map(type, cells))
    if kinds == {bool}:
        return _encoded("BOOL", cells)
    if kinds == {int}:
        return _encoded("INT64" if -_INT64 <= min(cells) <= max(cells) < _INT64 else "BYTES", cells)
    if kinds <= {int, float}:
        return _encoded("FP64", cells)
    if kinds == {list} and (nested := _nested(cells)) is not None:
        return nested
    if kinds == {dict}:
        cells = [_bytes_of(cell) for cell in cells]
    return _encoded("BYTES", cells)


def encode_numbers(array: Array) -> Encoded:
    """An array of numbers [rows, ...]."""
    if array.dtype.kind not in "fiub" or array.ndim == 0:
        raise UsageError("An array holds no numbers, or has no rows.")
    if array.dtype.kind == "f" and array.dtype.itemsize > np.dtype(np.float64).itemsize:
        array = array.astype(np.float64)
    return {"datatype": datatype_of(array), "shape": list(array.shape), "data": array.reshape(-1).tolist()}


def encode_tensor(tensor: Any) -> tuple[str, Encoded]:
    """A tensor of the Open Inference Protocol, with its name.

    Raises:
        UsageError: no such type, or data that do not fill the shape.
    """
    try:
        name, datatype, shape = tensor["name"], tensor["datatype"], tensor["shape"]
        dtype = np.dtype(NUMPY_TYPES[datatype])
        if type(name) is not str or any(type(size) is not int or size < 0 for size in shape):
            raise UsageError("A tensor has no name, or a shape of no whole numbers.")
        if not shape:
            raise UsageError("A tensor has no rows.")
        cells = _raw(tensor["raw"], dtype) if "raw" in tensor else _flat(tensor["data"])
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError("A tensor cannot be read.") from error
    if len(cells) != math.prod(shape):
        raise UsageError("A tensor's data do not fill its shape.")
    return name, {"datatype": datatype, "shape": list(shape), "data": cells}


def _encoded(datatype: str, cells: list[Any]) -> Encoded:
    return {"datatype": datatype, "shape": [len(cells)], "data": cells}


def _nested(cells: list[Any]) -> Encoded | None:
    try:
        array = np.asarray(cells)
    except (ValueError, OverflowError, RecursionError):
        return None
    if array.dtype.kind not in "fiub" or array.ndim < 2:
        return None
    return encode_numbers(array)


def _bytes_of(cell: dict[str, Any]) -> Any:
    """Bytes that stand in JSON as `{"b64": ...}`."""
    if cell.keys() != {"b64"}:
        return cell
    try:
        return base64.b64decode(cell["b64"], validate=True)
    except (binascii.Error, ValueError, TypeError):
        return cell


def _flat(data: Any) -> list[Any]:
    """The cells of data that may be nested as the shape is; the nesting itself is not looked at."""
    if type(data) is not list:
        raise UsageError("A tensor's data are no list.")
    cells: list[Any] = data
    while cells and type(cells[0]) is list:
        if any(type(part) is not list for part in cells):
            raise UsageError("A tensor's data are nested unevenly.")
        cells = [cell for part in cells for cell in part]
    return cells


def _raw(raw: bytes, dtype: "np.dtype[Any]") -> list[Any]:
    if dtype.kind != "O":
        found: list[Any] = np.frombuffer(raw, dtype.newbyteorder("<")).tolist()
        return found
    cells: list[Any] = []
    start = 0
    while start < len(raw):
        end = start + 4 + int.from_bytes(raw[start : start + 4], "little")
        if end > len(raw):
            raise UsageError("A tensor of texts ends within one.")
        cell = raw[start + 4 : end]
        try:
            cells.append(cell.decode())
        except UnicodeDecodeError:
            cells.append(cell)
        start = end
    return cells
