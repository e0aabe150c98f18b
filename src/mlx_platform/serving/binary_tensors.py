"""The binary tensor extension: raw tensors behind the JSON header, in the order of the inputs.

https://github.com/triton-inference-server/server `docs/protocol/extension_binary_data.md`. Tensors are
little-endian, row-major and without padding. A BYTES tensor is a sequence of elements, each with its length
in front as four bytes.
"""

import math
import struct
from typing import Any

import numpy as np

from mlx_platform.core.tensors import Array, TensorSpec, text_column
from mlx_platform.serving.refusal import malformed, out_of_memory

_LENGTH = struct.Struct("<I")


class BinaryReader:
    """Takes tensors one after the other from what follows the JSON header."""

    def __init__(self, content: memoryview) -> None:
        self._content = content
        self._offset = 0

    def take(self, size: Any, shape: tuple[int, ...], spec: TensorSpec) -> Array:
        """The next tensor, of `size` bytes.

        Raises:
            Refusal: 400; the size is no count or reaches beyond the body; or as `read_binary`.
        """
        if type(size) is not int or not 0 <= size <= len(self._content) - self._offset:
            raise malformed(f"The binary_data_size of input {spec.name!r} does not fit the body.")
        chunk = self._content[self._offset : self._offset + size]
        self._offset += size
        return read_binary(chunk, shape, spec)

    def finish(self) -> None:
        """Check that nothing is left over.

        Raises:
            Refusal: 400; the body is longer than its tensors.
        """
        if self._offset != len(self._content):
            raise malformed("The body is longer than the sizes of its binary tensors.")


def read_binary(chunk: memoryview | bytes, shape: tuple[int, ...], spec: TensorSpec) -> Array:
    """The tensor whose bytes these are.

    Raises:
        Refusal: 400; the bytes are not what the shape needs, or hold what the input does not take.
            503; there is no memory for it.
    """
    try:
        return _read(chunk, shape, spec)
    except (ValueError, OverflowError) as error:
        raise malformed(f"Input {spec.name!r} does not take this shape.") from error
    except MemoryError as error:
        raise out_of_memory() from error


def _read(chunk: memoryview | bytes, shape: tuple[int, ...], spec: TensorSpec) -> Array:
    if spec.datatype == "BYTES":
        return _read_elements(chunk, shape, spec)
    dtype = spec.numpy_type
    if math.prod(shape) * dtype.itemsize != len(chunk):
        raise malformed(f"The binary data of input {spec.name!r} are not as long as its shape needs.")
    # A copy: the view would be read-only, and as unaligned as the JSON header is long.
    array = np.frombuffer(chunk, dtype=dtype.newbyteorder("<")).astype(dtype).reshape(shape)
    if dtype.kind == "b" and len(chunk) and np.frombuffer(chunk, dtype=np.uint8).max() > 1:
        raise malformed(f"Input {spec.name!r} is BOOL: each byte must be 0 or 1.")
    if dtype.kind == "f" and not np.isfinite(array).all():
        raise malformed(f"Input {spec.name!r} holds NaN or infinity.")
    return array


def _read_elements(chunk: memoryview | bytes, shape: tuple[int, ...], spec: TensorSpec) -> Array:
    cells: list[str] = []
    offset, end = 0, len(chunk)
    while offset < end:
        start = offset + _LENGTH.size
        if start > end:
            raise malformed(f"The binary data of input {spec.name!r} end inside of an element.")
        offset = start + _LENGTH.unpack_from(chunk, offset)[0]
        if offset > end:
            raise malformed(f"The binary data of input {spec.name!r} end inside of an element.")
        try:
            cells.append(bytes(chunk[start:offset]).decode())
        except UnicodeDecodeError as error:
            raise malformed(f"Input {spec.name!r} holds bytes that are no UTF-8 text.") from error
    if len(cells) != math.prod(shape):
        raise malformed(f"The data of input {spec.name!r} are not as many values as its shape says.")
    return text_column(cells).reshape(shape)


def write_binary(array: Array) -> bytes:
    """An output's bytes; NaN and infinity are carried as they are."""
    if array.dtype.kind not in "OSU":
        return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).tobytes()
    parts: list[bytes] = []
    for cell in array.reshape(-1).tolist():
        raw = cell if isinstance(cell, bytes) else str(cell).encode("utf-8", "surrogatepass")
        parts += (_LENGTH.pack(len(raw)), raw)
    return b"".join(parts)
