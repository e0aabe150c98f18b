r"""A record as one line of an open segment: `<crc32, 8 hex digits> <JSON>\n`.

JSON never holds a raw line break, so a line is whole or torn; the checksum tells a damaged one.
"""

import zlib
from typing import Any

import orjson

from mlx_platform.core.errors import UsageError
from mlx_platform.traffic.record import Record

LINE_CAP = 64 * 1024 * 1024  # bytes a reader takes for one line
_HEAD = 9  # the checksum and a space


def encode(record: Record) -> bytes:
    """The framed line of a record.

    Raises:
        TypeError: a value that JSON cannot hold, such as text with a lone surrogate.
    """
    return seal_line(orjson.dumps(record))


def decode(line: bytes) -> Record:
    """Read a framed line, with or without its line break.

    Raises:
        UsageError: the checksum does not fit, or the JSON is no record.
    """
    return Record.from_document(open_line(line))


def seal_line(body: bytes) -> bytes:
    """The framed line of a JSON object."""
    return b"%08x %b\n" % (zlib.crc32(body), body)


def open_line(line: bytes) -> dict[str, Any]:
    """The JSON object of a framed line, with or without its line break.

    Raises:
        UsageError: the checksum does not fit, or there is no JSON object.
    """
    body = line[_HEAD:].rstrip(b"\n")
    if line[:_HEAD] != b"%08x " % zlib.crc32(body):
        raise UsageError("A line's checksum does not fit its content.")
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise UsageError(f"A line is no JSON: {error}.") from error
    if not isinstance(document, dict):
        raise UsageError("A line is no JSON object.")
    return document
