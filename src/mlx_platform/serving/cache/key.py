"""What an answer is remembered under: everything that it depends on, and nothing else.

A key leaves nothing out that could tell two questions apart: the version's digest, every input's name,
datatype, shape and values, the outputs that are asked for, the parameters and the tenant. Each part carries
its length, so that no two lists of parts run together to the same bytes.
"""

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import orjson

from mlx_platform.core.tensors import Array, Tensors

KEY_BYTES = 16
"""128 bits: among a million million keys, two are the same with a chance of one in 10**14."""


class KeyMaker:
    """Makes the keys of one version.

    Args:
        digest: the version's digest.
        stage: what is remembered, so that two kinds of values never meet.
        tolerance: floats are rounded to multiples of it; 0 compares bits. Two questions with the same key
            therefore differ by no more than it in any number.
    """

    def __init__(self, digest: str, stage: str, tolerance: float = 0.0) -> None:
        self._start = hashlib.blake2b(digest_size=KEY_BYTES)
        self._start.update(_framed(stage.encode()) + _framed(digest.encode()) + repr(tolerance).encode())
        self._tolerance = tolerance

    def make(self, arrays: Tensors, outputs: Iterable[str] = (), parts: Iterable[bytes] = ()) -> bytes:
        """The key of a question.

        Args:
            arrays: its inputs by name; their order does not count.
            outputs: names asked for; their order does not count.
            parts: what else the answer depends on, such as parameters and tenant, in order.

        Returns:
            `KEY_BYTES` bytes.
        """
        digest = self._start.copy()
        others = [*map(_named, sorted(outputs)), b"|", *map(_framed, parts)]
        digest.update(b"%d:%b" % (len(others), b"".join(others)))
        for name in sorted(arrays):
            array = arrays[name]
            head = f"{array.dtype.str}{array.shape}".encode()
            if array.dtype.kind in "USO":
                cells = _cells(array.reshape(-1).tolist())
                digest.update(_named(name) + _framed(head) + _framed(cells))
            else:
                digest.update(_named(name) + _framed(head))
                digest.update(np.ascontiguousarray(self._rounded(array)).data)
        return digest.digest()

    def _rounded(self, array: Array) -> Array:
        if not self._tolerance or array.dtype.kind != "f":
            return array
        with np.errstate(over="ignore"):
            steps: Array = np.rint(array.astype(np.float64) / self._tolerance)
        # Too many steps to count would make all large numbers one; 0.0 and -0.0 are no step apart.
        return steps + 0.0 if np.isfinite(steps).all() else array


def array_bytes(arrays: Tensors) -> int:
    """Roughly the memory of arrays: what a key has to read, and what an entry holds."""
    size = 0
    for array in arrays.values():
        size += 128 + array.nbytes
        if array.dtype.kind == "O":
            size += sum(_cell_bytes(cell) for cell in array.reshape(-1).tolist())
    return size


def _cell_bytes(cell: Any) -> int:
    if isinstance(cell, str):
        # The widest character decides how many bytes each takes; four is the most.
        return 56 + (len(cell) if cell.isascii() else 4 * len(cell))
    if isinstance(cell, bytes | bytearray):
        return 40 + len(cell)
    return 128 + cell.nbytes if isinstance(cell, np.ndarray) else 64


def _framed(content: bytes) -> bytes:
    return b"%d:%b" % (len(content), content)


def _named(name: str) -> bytes:
    return _framed(name.encode("utf-8", "surrogatepass"))


def _cells(cells: list[Any]) -> bytes:
    """Cells of text, bytes, numbers or arrays, as bytes that no other cells have."""
    try:
        return b"j" + orjson.dumps(cells)
    except TypeError:  # bytes, arrays, and text that is no Unicode
        return b"c" + b"".join(map(_cell, cells))


def _cell(cell: Any) -> bytes:
    if isinstance(cell, str):
        return b"s" + _framed(cell.encode("utf-8", "surrogatepass"))
    if isinstance(cell, bytes | bytearray):
        return b"b" + _framed(bytes(cell))
    if isinstance(cell, np.ndarray):
        head = f"{cell.dtype.str}{cell.shape}".encode()
        return b"a" + _framed(head) + _framed(np.ascontiguousarray(cell).tobytes())
    return b"r" + _framed(f"{type(cell).__name__}{cell!r}".encode("utf-8", "surrogatepass"))
