"""Bodies of requests and answers, read as their content type says."""

import io
import json
import math
import re
from typing import Any

import numpy as np
import orjson

from mlx_platform.core.errors import UsageError
from mlx_platform.traffic.readers.csv_rows import TooLongError, rows_of
from mlx_platform.traffic.readers.entry import Body

_STARTS = frozenset("0123456789+-.nNiI")
_WHOLE = re.compile(r"[+-]?(0|[1-9][0-9]{0,17})")
_NUMBER = re.compile(r"(?i)[+-]?(((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)(e[+-]?[0-9]{1,4})?|nan|inf|infinity)")


class Table:
    """Rows without names, from CSV: text cells in lists of one length; None where a cell is empty."""

    __slots__ = ("rows",)

    def __init__(self, rows: list[list[Any]]) -> None:
        self.rows = rows


class Whole:
    """A body that is one value: a text, or the bytes of an image."""

    __slots__ = ("value",)

    def __init__(self, value: str | bytes) -> None:
        self.value = value


def parse_body(body: Body) -> Any:
    """What a body holds: JSON values, a `Table`, a `Whole`, or an array.

    Raises:
        UsageError: it cannot be read.
    """
    content = body.content
    if not isinstance(content, str | bytes):
        return content
    kind = body.content_type.partition(";")[0].strip().lower()
    if kind.startswith("image/"):
        return Whole(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
    if kind == "application/x-npy":
        return parse_npy(content)
    if isinstance(content, bytes):
        if is_binary_tensors(content, kind):
            return split_tensors(content)
        content = _text(content)
    return _parse_text(content, kind)


def _parse_text(content: str, kind: str) -> Any:
    if kind in {"application/jsonlines", "application/x-ndjson", "application/jsonl"}:
        return [parse_json(line) for line in content.splitlines() if line.strip()]
    if kind == "text/plain":
        return Whole(content)
    if "json" in kind or ("csv" not in kind and content.lstrip()[:1] in {"{", "["}):
        return parse_json(content)
    return parse_csv(content)


def parse_json(text: str | bytes) -> Any:
    """JSON, with the tokens NaN and Infinity that some servers write.

    Raises:
        UsageError: it is none.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        pass
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError("A body is no JSON.") from error


def parse_csv(text: str) -> Table:
    """CSV without a header; a cell that spells a number is one, an empty cell is None.

    Raises:
        UsageError: there is no row, or rows differ in their number of cells.
    """
    try:
        rows = [row for row in rows_of(io.StringIO(text, newline="\n")) if row]
    except TooLongError as error:
        raise UsageError("A body is no CSV.") from error
    if not rows or any(len(row) != len(rows[0]) for row in rows):
        raise UsageError("The rows of a CSV body differ in their number of cells, or there is none.")
    return Table([[cell_of(cell) for cell in row] for row in rows])


def cell_of(text: str) -> Any:
    """A cell of CSV as a number where it is written as one; `007` is a name."""
    text = text.strip()
    if not text or text[0] not in _STARTS:
        return text or None
    if _NUMBER.fullmatch(text):
        return float(text) if not _WHOLE.fullmatch(text) else int(text)
    return text


def parse_npy(content: str | bytes) -> np.ndarray[Any, Any]:
    """An array as NumPy writes it; one of Python objects is refused, as reading it runs code.

    Raises:
        UsageError: it is none, or holds other bytes than its head says.
    """
    if isinstance(content, str):
        raise UsageError("An array was logged as text.")
    file = io.BytesIO(content)
    try:
        version = np.lib.format.read_magic(file)
        read = (
            np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        )
        shape, fortran, dtype = read(file)
        rest = content[file.tell() :]
        if dtype.hasobject or math.prod(shape) * dtype.itemsize != len(rest) or dtype.kind not in "fiub":
            raise UsageError("An array holds other bytes than its head says.")
        array = np.frombuffer(rest, dtype).reshape(shape, order="F" if fortran else "C")
    except (ValueError, TypeError, OverflowError, SyntaxError, RecursionError) as error:
        raise UsageError("A body is no array of NumPy.") from error
    return array.astype(dtype.newbyteorder("="))


def is_binary_tensors(content: bytes, kind: str) -> bool:
    """Whether a body is the JSON head of tensors whose bytes follow it, as Triton's clients send it."""
    return b'"binary_data_size"' in content[:65536] and (
        "json" in kind or kind in {"", "application/octet-stream"}
    )


def split_tensors(content: bytes) -> Any:
    """The head of such a body, each tensor's bytes set in as `raw`.

    Raises:
        UsageError: head and bytes do not fit.
    """
    text = content.decode("utf-8", "surrogateescape")
    try:
        head, end = json.JSONDecoder().raw_decode(text)
        tail = text[end:].encode("utf-8", "surrogateescape")
        tensors = [tensor for side in ("inputs", "outputs") for tensor in head.get(side, ()) or ()]
        for tensor in tensors:
            size = tensor.get("parameters", {}).get("binary_data_size")
            if size is None:
                continue
            if type(size) is not int or not 0 <= size <= len(tail):
                raise UsageError("A tensor's bytes are not all there.")
            tensor["raw"], tail = tail[:size], tail[size:]
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise UsageError("A body of tensors has no head that can be read.") from error
    return head


def _text(content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError("A body is neither text nor of a type that can be read.") from error
