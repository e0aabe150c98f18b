"""Tensors as the platform names, checks and writes them: the types of the Open Inference Protocol.

https://github.com/kserve/open-inference-protocol `specification/protocol/inference_rest.md`.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mlx_platform.core.errors import UsageError

Array = npt.NDArray[Any]
Tensors = Mapping[str, Array]
"""Arrays by tensor name; the first dimension of each is the row."""
Columns = Mapping[str, Array]
"""Raw inputs or answers by column name: one-dimensional, or [rows, k], all with the same number of rows."""

NUMPY_TYPES: dict[str, npt.DTypeLike] = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
    "BYTES": np.object_,
}
_NAMES = {np.dtype(numpy_type): name for name, numpy_type in NUMPY_TYPES.items()}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A model's input or output: protocol datatype and shape, with None for a dimension that varies."""

    name: str
    datatype: str
    shape: tuple[int | None, ...]

    @property
    def numpy_type(self) -> np.dtype[Any]:
        return np.dtype(NUMPY_TYPES[self.datatype])

    def __str__(self) -> str:
        dims = ", ".join("?" if dim is None else str(dim) for dim in self.shape)
        return f"{self.name} {self.datatype} [{dims}]"


def datatype_of(array: Array) -> str:
    """The protocol's name of an array's dtype; text is BYTES."""
    if array.dtype.kind in "USO":
        return "BYTES"
    return _NAMES[array.dtype]


def row_count(columns: Columns) -> int:
    """The shared number of rows.

    Raises:
        UsageError: there is no column, one is no column but a single value, or two have different lengths.
    """
    if not columns:
        raise UsageError("There are no columns.")
    for name, column in columns.items():
        if not np.ndim(column):
            raise UsageError(f"Column {name!r} is a single value, not a column of rows.")
    lengths = {name: len(column) for name, column in columns.items()}
    first = next(iter(lengths.values()))
    for name, length in lengths.items():
        if length != first:
            raise UsageError(f"Column {name!r} has {length} rows where the others have {first}.")
    return first


def check_tensor(array: Array, spec: TensorSpec) -> None:
    """Refuse an array that the input cannot take: datatype, rank, fixed dimensions, finite values.

    Raises:
        UsageError: names the input, what was expected and what came.
    """
    if datatype_of(array) != spec.datatype:
        raise UsageError(f"Input {spec.name!r} takes {spec.datatype}, not {datatype_of(array)}.")
    if array.ndim != len(spec.shape) or any(
        want is not None and want != have for want, have in zip(spec.shape, array.shape, strict=True)
    ):
        raise UsageError(
            f"Input {spec.name!r} takes the shape {_shape(spec.shape)}, not {_shape(array.shape)}."
        )
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        row = int(np.argwhere(~np.isfinite(array))[0][0])
        raise UsageError(f"Input {spec.name!r} holds NaN or infinity, first in row {row}.")


def _shape(shape: tuple[int | None, ...]) -> str:
    return "[" + ",".join("?" if dim is None else str(dim) for dim in shape) + "]"


def encode_array(array: Array) -> dict[str, Any]:
    """Write an array as JSON-ready data that reads back bit for bit.

    Finite numbers are plain JSON numbers (shortest form that round-trips); arrays with NaN or infinity, and
    half precision, are base64 of their little-endian bytes, since JSON has no form for them. Bytes objects
    are base64 one by one.
    """
    datatype = datatype_of(array)
    head = {"datatype": datatype, "shape": list(array.shape)}
    if datatype == "BYTES":
        cells = array.reshape(-1).tolist()
        if any(isinstance(cell, bytes) for cell in cells):
            texts = [cell if isinstance(cell, bytes) else str(cell).encode() for cell in cells]
            return head | {"base64_each": [base64.b64encode(text).decode() for text in texts]}
        return head | {"data": cells}
    if array.dtype.kind == "f" and (datatype == "FP16" or not np.isfinite(array).all()):
        raw = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).tobytes()
        return head | {"base64": base64.b64encode(raw).decode()}
    # A float32 becomes the float64 of the same value: longer text, but exact.
    return head | {"data": array.reshape(-1).tolist()}


def decode_array(encoded: Mapping[str, Any]) -> Array:
    """Read what `encode_array` wrote.

    Raises:
        UsageError: the data do not fit the datatype or the shape.
    """
    try:
        shape = tuple(int(dim) for dim in encoded["shape"])
        dtype = np.dtype(NUMPY_TYPES[encoded["datatype"]])
        if "base64" in encoded:
            raw = base64.b64decode(encoded["base64"], validate=True)
            return np.frombuffer(raw, dtype=dtype.newbyteorder("<")).astype(dtype).reshape(shape)
        if "base64_each" in encoded:
            array = np.empty(len(encoded["base64_each"]), dtype=object)
            array[:] = [base64.b64decode(cell, validate=True) for cell in encoded["base64_each"]]
            return array.reshape(shape)
        if dtype.kind == "O":
            return text_column(list(encoded["data"])).reshape(shape)
        return np.asarray(encoded["data"], dtype=dtype).reshape(shape)
    except (KeyError, TypeError, ValueError, OverflowError, MemoryError) as error:
        raise UsageError(f"A tensor cannot be read: {error}.") from error


def text_column(cells: list[Any]) -> Array:
    """A column of Python objects, never turned into a fixed-width or ragged NumPy array."""
    column = np.empty(len(cells), dtype=object)
    column[:] = cells
    return column
