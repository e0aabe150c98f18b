"""Rows of CSV whose cells may be payloads of megabytes.

The standard library's reader refuses cells of more than 128 KB, and its limit can only be raised for the
whole process, which is not ours to change.
"""

import re
from collections.abc import Iterable, Iterator

CELL_CAP = 64 * 1024 * 1024
_CELL = re.compile(r'"((?:[^"]++|"")*+)"([^,\n]*)|(?!")([^,\n]*)')


class TooLongError(ValueError):
    """A row is longer than any payload, or a quoted cell never ends."""


def rows_of(lines: Iterable[str]) -> Iterator[list[str]]:
    """The cells of each row, as `csv.reader` would give them; an empty line is an empty row.

    Args:
        lines: each with its line break.

    Raises:
        TooLongError: a row is longer than `CELL_CAP`.
    """
    cells: list[str] = []
    rest: list[str] = []
    size = 0
    for line in lines:
        size += len(line)
        if size > CELL_CAP:
            raise TooLongError("a row is too long, or a quote is never closed")
        rest.append(line)
        if len(rest) > 1 and '"' not in line.replace('""', ""):
            continue  # quotes within a cell are doubled, so the open one does not end here
        still_open = _take(cells, "".join(rest))
        rest = [still_open] if still_open else []
        if not rest:
            yield cells
            cells, size = [], 0
    if rest:
        # The file was cut within a cell: as far as it goes, which the number of cells then tells.
        yield [*cells, "".join(rest)]


def _take(cells: list[str], text: str) -> str:
    """Add the cells of a text that begins with one; what is left is one that goes on in the next line."""
    at, end = 0, len(text) - text.endswith("\n")
    if not cells and not text.strip("\r\n"):
        return ""
    while True:
        found = _CELL.match(text, at)
        if found is None:
            return text[at:]
        quoted, more, plain = found.groups()
        tail = plain if quoted is None else more
        at = found.end()
        if at >= end:
            tail = tail.removesuffix("\r")
        cells.append(tail if quoted is None else quoted.replace('""', '"') + tail)
        if at >= end:
            return ""
        at += 1
