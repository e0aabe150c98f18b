"""A short hash of the arrays at one stage of a request, computed alike by the server and by its replay."""

import hashlib
import sys
from functools import lru_cache
from typing import Any

import numpy as np

from mlx_platform.core.tensors import Array, Tensors

_DIGEST_BYTES = 8  # two requests in four thousand million share one: enough to point at a stage


def stage_hash(arrays: Tensors) -> str:
    """Hash names, datatypes, shapes and bits of the arrays of one stage.

    The order of the names does not count, the byte order of the machine does not count, and text is the
    same whether it stands in a fixed-width or in an object array. Bits count: -0.0 and 0.0 differ.

    Args:
        arrays: by name; cells of object arrays are text, bytes, numbers, None or arrays.

    Returns:
        16 hex digits of BLAKE2b (RFC 7693).
    """
    parts: list[bytes] = []
    for name in sorted(arrays):
        array = np.asarray(arrays[name])
        parts.append(_framed(b"name", name.encode("utf-8", "surrogatepass")))
        if array.dtype.kind in "USO":
            parts.append(f"cells{array.shape}".encode())
            parts += map(_cell, array.reshape(-1).tolist())
        else:
            parts += _numbers(array)
    # Many small parts: one call for all of them costs less than one for each.
    return hashlib.blake2b(b"".join(parts), digest_size=_DIGEST_BYTES).hexdigest()


def _framed(kind: bytes, content: bytes) -> bytes:
    # The length keeps ("ab", "c") apart from ("a", "bc").
    return b"%s:%d:%s" % (kind, len(content), content)


def _numbers(array: Array) -> tuple[bytes, bytes]:
    """Datatype and shape, and the bits: little-endian in C order, whatever the layout."""
    if not array.dtype.isnative or sys.byteorder != "little":
        array = array.astype(array.dtype.newbyteorder("<"))
    return _head(array.dtype, array.shape), array.tobytes()


@lru_cache(maxsize=1024)
def _head(kind: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    # Kept: the requests to a model share a few, and to write one takes longer than the rest of a short array.
    return f"{kind.str}{shape}".encode()


def _cell(cell: Any) -> bytes:
    if isinstance(cell, str):
        return _framed(b"text", cell.encode("utf-8", "surrogatepass"))
    if isinstance(cell, bytes):
        return _framed(b"bytes", cell)
    if isinstance(cell, np.ndarray):
        return _framed(b"array", b"".join(_numbers(cell)))
    if isinstance(cell, np.generic):
        return _cell(cell.item())
    # repr of None, bool, int and float is exact, and differs between 1, 1.0 and True.
    return _framed(type(cell).__name__.encode(), repr(cell).encode("utf-8", "surrogatepass"))
