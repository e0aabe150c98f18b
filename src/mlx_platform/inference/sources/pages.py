"""How large the pages of a Parquet column chunk become when they are unpacked.

Page headers are Thrift structs in the compact protocol: https://github.com/apache/parquet-format, README and
`parquet.thrift`; https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md.
"""

from typing import Any, BinaryIO

_HEADER = 1 << 16  # bytes; a page header with its statistics is far shorter
_UNPACKED, _PACKED = 2, 3  # fields of PageHeader
_STOP, _TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(13)
_DEEPEST = 8


class _Reader:
    """A cursor over the bytes of one header."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.at = 0

    def byte(self) -> int:
        if self.at >= len(self._content):
            raise OSError("a page header is cut off")
        self.at += 1
        return self._content[self.at - 1]

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if not byte & 0x80:
                return value
            shift += 7

    def number(self) -> int:
        value = self.varint()
        return (value >> 1) ^ -(value & 1)

    def skip(self, kind: int, depth: int = 0) -> None:
        if depth > _DEEPEST:
            raise OSError("a page header is nested too deeply")
        if kind in {_TRUE, _FALSE}:
            return
        if kind == _BYTE:
            self.byte()
        elif kind in {_I16, _I32, _I64}:
            self.varint()
        elif kind == _DOUBLE:
            self.at += 8
        elif kind == _BINARY:
            length = self.varint()
            self.at += length
        elif kind == _STRUCT:
            while (field := self.byte()) & 0x0F != _STOP:
                if not field >> 4:
                    self.varint()
                self.skip(field & 0x0F, depth + 1)
        else:
            raise OSError("a page header holds what none should")


def _sizes(reader: _Reader) -> tuple[int, int]:
    """Bytes unpacked and packed, from a PageHeader."""
    found = {_UNPACKED: -1, _PACKED: -1}
    field = 0
    while (head := reader.byte()) & 0x0F != _STOP:
        field = field + (head >> 4) if head >> 4 else reader.number()
        if field in found:
            found[field] = reader.number()
        else:
            reader.skip(head & 0x0F)
    if min(found.values()) < 0:
        raise OSError("a page header names no sizes")
    return found[_UNPACKED], found[_PACKED]


def largest_page(file: BinaryIO, chunk: Any) -> int:
    """The unpacked size of the largest page, in bytes.

    Args:
        file: the Parquet file.
        chunk: metadata of the column chunk.

    Raises:
        OSError: the pages are no valid ones.
    """
    start = chunk.data_page_offset
    if chunk.has_dictionary_page and chunk.dictionary_page_offset:
        start = min(start, chunk.dictionary_page_offset)
    end = start + chunk.total_compressed_size
    largest = 0
    while start < end:
        file.seek(start)
        reader = _Reader(file.read(_HEADER))
        unpacked, packed = _sizes(reader)
        largest = max(largest, unpacked)
        start += reader.at + packed
    return largest
