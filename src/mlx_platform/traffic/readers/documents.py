"""Rows out of files: lines of JSON, JSON in an array or one after another, CSV with a head, and Parquet."""

import codecs
import json
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import orjson

from mlx_platform.core.errors import UsageError
from mlx_platform.traffic.readers.bodies import parse_json
from mlx_platform.traffic.readers.csv_rows import TooLongError, rows_of
from mlx_platform.traffic.readers.entry import Document
from mlx_platform.traffic.readers.files import CHUNK, BrokenFileError, TornFileError, chunks, is_csv, is_table

LINE_CAP = 64 * 1024 * 1024
BATCH_ROWS = 64
"""Rows of a table that are held at a time: each may carry two payloads of megabytes."""

Loss = Literal["torn", "unreadable"]
"""What stands in the place of a document that cannot be read: the cut end of a file, or damage within."""

_BETWEEN = re.compile(r"[\s,\[\]]*")
_NEXT = re.compile(r"\n\s*,?\s*(?=\{)")


def documents(path: Path) -> Iterator[Document | Loss]:
    """The rows of a file, and a word for each that cannot be read.

    Raises:
        BrokenFileError: the file cannot be read on from here.
        OSError: it cannot be read at all.
    """
    if is_table(path):
        yield from _rows_of_table(path)
        return
    content = chunks(path)
    try:
        head = next(content, b"")
        whole = chain([head], content)
        if is_csv(path):
            yield from _rows_of_csv(whole)
        elif _has_lines(head):
            yield from _lines(whole)
        else:
            yield from _values(whole)
    except TornFileError:
        yield "torn"


def columns_of_table(path: Path) -> list[str]:
    """The names of a Parquet file's columns.

    Raises:
        BrokenFileError: it is none.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        names: list[str] = pq.read_schema(path).names
    except (pa.ArrowException, OSError) as error:
        raise BrokenFileError(str(error)) from error
    return names


def _has_lines(head: bytes) -> bool:
    """Whether some line of the first megabyte is a JSON object by itself."""
    lines = head.split(b"\n")
    if len(head) >= CHUNK and len(lines) > 1:
        lines.pop()
    for line in lines[:100]:
        text = line.strip()
        if text.startswith(b"{") and (text.endswith(b"}") or len(lines) == 1):
            try:
                return isinstance(parse_json(text), dict)
            except UsageError:
                continue
    # One line longer than a megabyte: taken as such when it is an object.
    return len(lines) == 1 and head.lstrip()[:1] == b"{"


def _lines(content: Iterable[bytes]) -> Iterator[Document | Loss]:
    rest: list[bytes] = []
    waiting, too_long = 0, False
    torn: TornFileError | None = None
    source = iter(content)
    while True:
        try:
            chunk = next(source, None)
        except TornFileError as error:
            chunk, torn = None, error
        if chunk is None:
            break
        first, *others = chunk.split(b"\n")
        for ended in (first, *others)[:-1] if others else ():
            line = b"".join((*rest, ended))
            if too_long or len(line) > LINE_CAP:
                yield "unreadable"
            elif line.strip():
                yield _of_line(line, "unreadable")
            rest, waiting, too_long = [], 0, False
        last = others[-1] if others else first
        waiting += len(last)
        if waiting > LINE_CAP:
            rest, too_long = [], True
        else:
            rest.append(last)
    end = b"".join(rest)
    if torn:
        yield "torn"
    elif too_long:
        yield "unreadable"
    elif end.strip():
        yield _of_line(end, "torn")


def _of_line(line: bytes, loss: Loss) -> Document | Loss:
    try:
        found = orjson.loads(line)
    except orjson.JSONDecodeError:
        try:
            found = parse_json(line)
        except UsageError:
            return loss
    return found if isinstance(found, dict) else "unreadable"


def _values(content: Iterable[bytes]) -> Iterator[Document | Loss]:
    """JSON objects one after another or in arrays, over any number of lines."""
    scan = _Scan()
    torn = False
    source = iter(content)
    while True:
        try:
            chunk = next(source, None)
        except TornFileError:
            chunk, torn = None, True
        if chunk is None:
            break
        yield from scan.take(chunk)
    yield from scan.finish()
    if torn:
        yield "torn"


class _Scan:
    """Finds values in text that comes in pieces."""

    def __init__(self) -> None:
        self._bytes = codecs.getincrementaldecoder("utf-8-sig")("replace")
        self._json = json.JSONDecoder()
        self._text = ""

    def take(self, chunk: bytes) -> Iterator[Document | Loss]:
        self._text += self._bytes.decode(chunk)
        yield from self._found()
        if len(self._text) > LINE_CAP:
            raise BrokenFileError("a value is too long, or never ends")

    def finish(self) -> Iterator[Document | Loss]:
        self._text += self._bytes.decode(b"", final=True)
        yield from self._found()
        while self._text:
            after = _NEXT.search(self._text, 1)
            if after is None:
                yield "torn"
                return
            yield "unreadable"
            self._text = self._text[after.end() :]
            yield from self._found()

    def _found(self) -> Iterator[Document | Loss]:
        at = 0
        while (at := self._skip(at)) < len(self._text):
            try:
                value, at = self._json.raw_decode(self._text, at)
            except (ValueError, RecursionError):
                break
            yield value if isinstance(value, dict) else "unreadable"
        self._text = self._text[at:]

    def _skip(self, at: int) -> int:
        between = _BETWEEN.match(self._text, at)
        return between.end() if between else at


def _rows_of_csv(content: Iterable[bytes]) -> Iterator[Document | Loss]:
    torn: list[TornFileError] = []
    reader = rows_of(_text_lines(content, torn))
    try:
        names = next(reader, [])
        for row in reader:
            if len(row) == len(names):
                yield dict(zip(names, row, strict=True))
            elif row:
                yield "unreadable"
    except TooLongError as error:
        raise BrokenFileError(str(error)) from error
    if torn:
        yield "torn"


def _text_lines(content: Iterable[bytes], torn: list[TornFileError]) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
    rest = ""
    source = iter(content)
    while True:
        try:
            chunk = next(source, None)
        except TornFileError as error:
            torn.append(error)
            chunk = None
        text = rest + decoder.decode(chunk or b"", final=chunk is None)
        *lines, rest = text.split("\n")
        if len(rest) > LINE_CAP:
            raise BrokenFileError("a line is too long")
        yield from (f"{line}\n" for line in lines)
        if chunk is None:
            break
    if rest:
        yield rest


def _rows_of_table(path: Path) -> Iterator[Document | Loss]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, page_checksum_verification=True, pre_buffer=False) as file:
            for batch in file.iter_batches(batch_size=BATCH_ROWS):
                yield from _in_microseconds(batch).to_pylist()
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        raise BrokenFileError(str(error)) from error


def _in_microseconds(batch: Any) -> Any:
    """Times in the finest unit that Python has: of nanoseconds, Arrow makes objects of pandas."""
    import pyarrow as pa

    arrays = [
        column.cast(pa.timestamp("us", tz=column.type.tz), safe=False)
        if pa.types.is_timestamp(column.type) and column.type.unit == "ns"
        else column
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)
