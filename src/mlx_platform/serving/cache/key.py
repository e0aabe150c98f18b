"""What an answer is remembered under: everything that it depends on, and nothing else.

A key leaves nothing out that could tell two questions apart: the version's digest, every input's name,
datatype, shape and values, the outputs that are asked for, the parameters and the tenant. Each part carries
its length, so that no two lists of parts run together to the same bytes.
"""

import hashlib
from typing import Any

import numpy as np
import orjson

from mlx_platform.core.tensors import Array, Tensors

KEY_BYTES = 16
"""128 bits: among a million million keys, two are the same with a chance of one in 10**14."""

_MOST_KNOWN = 256
_MOST_PART_BYTES = 1024
_LONG_BYTES = 512 * 1024


class KeyMaker:
    """Makes the keys of one version.

    Args:
        digest: the version's digest.
        stage: what is remembered, so that two kinds of values never meet.
        tolerance: floats are rounded to multiples of it; 0 compares bits. Two questions with the same key
            therefore differ by no more than it in any number.
    """

    def __init__(self, digest: str, stage: str, tolerance: float = 0.0) -> None:
        self._base = hashlib.blake2b(digest_size=KEY_BYTES)
        self._base.update(_framed(stage.encode()) + _framed(digest.encode()) + repr(tolerance).encode())
        self._tolerance = tolerance
        # What requests have in common is worked out once. Clients choose some of it, so it is bounded.
        self._starts: dict[tuple[tuple[str, ...], tuple[bytes, ...]], hashlib.blake2b] = {}
        self._heads: dict[tuple[str, str, tuple[int, ...]], bytes] = {}

    def make(self, arrays: Tensors, outputs: tuple[str, ...] = (), parts: tuple[bytes, ...] = ()) -> bytes:
        """The key of a question; may be called from many threads.

        Args:
            arrays: its inputs by name; their order does not count.
            outputs: names asked for; their order does not count.
            parts: what else the answer depends on, such as parameters and tenant, in order.

        Returns:
            `KEY_BYTES` bytes.
        """
        start = self._starts.get((outputs, parts)) or self._start(outputs, parts)
        digest = start.copy()
        for name in sorted(arrays) if len(arrays) > 1 else arrays:
            array = arrays[name]
            digest.update(self._heads.get((name, array.dtype.str, array.shape)) or self._head(name, array))
            if array.dtype.kind in "USO":
                digest.update(_framed(_cells(array.reshape(-1).tolist())))
            else:
                digest.update(np.ascontiguousarray(self._rounded(array)).data)
        return digest.digest()

    def _start(self, outputs: tuple[str, ...], parts: tuple[bytes, ...]) -> hashlib.blake2b:
        others = [*map(_named, sorted(outputs)), b"|", *map(_framed, parts)]
        start = self._base.copy()
        start.update(b"%d:%b" % (len(others), b"".join(others)))
        if len(self._starts) >= _MOST_KNOWN:
            self._starts.clear()
        if sum(map(len, parts)) <= _MOST_PART_BYTES:
            self._starts[outputs, parts] = start
        return start

    def _head(self, name: str, array: Array) -> bytes:
        head = _named(name) + _framed(f"{array.dtype.str}{array.shape}".encode())
        if len(self._heads) >= _MOST_KNOWN:
            self._heads.clear()
        self._heads[name, array.dtype.str, array.shape] = head
        return head

    def _rounded(self, array: Array) -> Array:
        if not self._tolerance or array.dtype.kind != "f":
            return array
        with np.errstate(over="ignore"):
            steps: Array = np.rint(array.astype(np.float64) / self._tolerance)
        # Too many steps to count would make all large numbers one; 0.0 and -0.0 are no step apart.
        return steps + 0.0 if np.isfinite(steps).all() else array


def is_short(arrays: Tensors) -> bool:
    """Whether the key of these arrays takes no longer to make than to hand it to a thread."""
    size = 0
    for array in arrays.values():
        size += array.nbytes if array.dtype.kind != "O" else array_bytes({"": array})
    return size < _LONG_BYTES


def array_bytes(arrays: Tensors) -> int:
    """Roughly the memory that arrays take."""
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
