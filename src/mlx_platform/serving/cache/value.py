"""Answers as bytes outside of this process: tensors with datatype and shape, a checksum, and no code.

    mlx1 | checksum or signature (16) | key (16) | length of the header (4) | header, JSON | raw tensors

The header lists name, datatype, shape and bytes of each tensor. The key stands inside, so that a value which
came back for another question is noticed. With a secret, the checksum is a signature: nobody else who can
write to the store can make one.
"""

import hashlib
import hmac
import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson

from mlx_platform.core.tensors import NUMPY_TYPES, Array, Tensors, TensorSpec, datatype_of, text_column
from mlx_platform.serving.json_tensors import all_finite

_MAGIC = b"mlx1"
_SUM = 16
_COUNT = struct.Struct("<I")


class DamagedValueError(Exception):
    """Bytes that are no answer to this question: damaged, somebody else's, or of another form."""


def is_sound(tensors: Tensors) -> bool:
    """Whether an answer may be remembered: NaN and infinity are a sign of trouble, and are computed again."""
    return all(array.dtype.kind != "f" or all_finite(array) for array in tensors.values())


def copied(tensors: Tensors) -> dict[str, Array]:
    """Arrays of their own: no views that keep a whole batch alive, and nobody else changes them."""
    return {name: array.copy() for name, array in tensors.items()}


def pack(key: bytes, tensors: Tensors, secret: bytes = b"") -> bytes | None:
    """Write an answer; None where it holds cells that are no text."""
    header: list[Mapping[str, Any]] = []
    raw: list[bytes] = []
    for name, array in tensors.items():
        content = _write(array)
        if content is None:
            return None
        raw.append(content)
        header.append(
            {
                "name": name,
                "datatype": datatype_of(array),
                "shape": list(array.shape),
                "bytes": len(content),
            }
        )
    head = orjson.dumps(header)
    body = b"".join((key, _COUNT.pack(len(head)), head, *raw))
    return b"".join((_MAGIC, _checksum(body, secret), body))


def unpack(
    key: bytes, value: bytes, specs: Mapping[str, TensorSpec], secret: bytes = b""
) -> dict[str, Array]:
    """Read an answer.

    Args:
        key: what was asked for.
        value: what the store gave.
        specs: the outputs that the answer must consist of.
        secret: as in `pack`.

    Raises:
        DamagedValueError: it is not whole, not for this key, or not what the model gives.
    """
    start = len(_MAGIC) + _SUM
    body = memoryview(value)[start:]
    if value[: len(_MAGIC)] != _MAGIC or not hmac.compare_digest(
        value[len(_MAGIC) : start], _checksum(body, secret)
    ):
        raise DamagedValueError("The checksum is another one.")
    if bytes(body[: len(key)]) != key:
        raise DamagedValueError("It is the answer to another question.")
    try:
        return _read_tensors(body[len(key) :], specs)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, struct.error) as error:
        raise DamagedValueError("It is not in the form of an answer.") from error


def _read_tensors(body: memoryview, specs: Mapping[str, TensorSpec]) -> dict[str, Array]:
    (length,) = _COUNT.unpack_from(body)
    header = orjson.loads(bytes(body[_COUNT.size : _COUNT.size + length]))
    offset = _COUNT.size + length
    found: dict[str, Array] = {}
    for entry in header:
        spec = specs[entry["name"]]
        shape = tuple(int(dim) for dim in entry["shape"])
        if entry["datatype"] != spec.datatype or not _fits(shape, spec):
            raise ValueError(f"no {spec}")
        end = offset + int(entry["bytes"])
        found[spec.name] = _read(body[offset:end], int(entry["bytes"]), shape, spec.datatype)
        offset = end
    if offset != len(body) or found.keys() != specs.keys() or not is_sound(found):
        raise ValueError("tensors are missing or left over")
    return found


def _fits(shape: tuple[int, ...], spec: TensorSpec) -> bool:
    return len(shape) == len(spec.shape) and all(
        have >= 0 and want in {None, have} for want, have in zip(spec.shape, shape, strict=True)
    )


def _read(chunk: memoryview, size: int, shape: tuple[int, ...], datatype: str) -> Array:
    if datatype == "BYTES":
        cells = orjson.loads(bytes(chunk))
        if type(cells) is not list or not set(map(type, cells)) <= {str}:
            raise ValueError("no list of text")
        return text_column(cells).reshape(shape)
    dtype = np.dtype(NUMPY_TYPES[datatype])
    if not size == len(chunk) == math.prod(shape) * dtype.itemsize:
        raise ValueError("another size")
    # A copy, because what is read from bytes is neither aligned nor writable.
    return np.frombuffer(chunk, dtype=dtype.newbyteorder("<")).astype(dtype).reshape(shape)


def _write(array: Array) -> bytes | None:
    if array.dtype.kind in "OSU":
        cells = array.reshape(-1).tolist()
        if not set(map(type, cells)) <= {str}:
            return None
        try:
            return orjson.dumps(cells)
        except TypeError:  # text that is no Unicode
            return None
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).tobytes()


def _checksum(body: bytes | memoryview, secret: bytes) -> bytes:
    # A longer secret counts whole: BLAKE2b takes no more than 64 bytes.
    key = secret if len(secret) <= 64 else hashlib.blake2b(secret).digest()
    return hashlib.blake2b(body, digest_size=_SUM, key=key).digest()
