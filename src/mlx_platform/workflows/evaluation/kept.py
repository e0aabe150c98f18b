"""Columns that an evaluation keeps for every row, as small as they can be."""

import hashlib
import tempfile
import weakref
from collections.abc import Hashable, Sequence
from typing import IO, Any, overload

import numpy as np

from mlx_platform.core.errors import UsageError
from mlx_platform.core.tensors import Array, text_column
from mlx_platform.evaluation.truth import is_empty

IN_MEMORY = 64 << 20
"""Bytes of a column beyond which it moves to a temporary file that nobody else can open."""
_FEW = 65_536
_START = 4096
_NONE = type(None)


class Column:
    """A column that grows in place; numbers move to disk when they are many, equal objects are held once.

    Args:
        rows: how many there will be, if that is known.
        in_memory: bytes up to which numbers stay in memory.
    """

    def __init__(self, rows: int | None = None, *, in_memory: int = IN_MEMORY) -> None:
        self._in_memory = in_memory
        self._expected = rows or _START
        self._rows = 0
        self._buffer: Array | None = None
        self._file: IO[bytes] | None = None
        self._known: dict[Hashable, Any] = {}

    def add(self, part: Array) -> None:
        """Append rows [any, ...].

        Raises:
            UsageError: the disk is full.
        """
        if not len(part):
            return
        if part.dtype.kind == "O":
            part = text_column(self._shared(part.tolist()))
        part = self._fit(part)
        if self._file is not None:
            self._write(part)
        else:
            buffer = self._grown(self._rows + len(part), part)
            buffer[self._rows : self._rows + len(part)] = part
        self._rows += len(part)
        if self._file is None and part.dtype.kind != "O" and self._bytes() > self._in_memory:
            self._spill()

    def finish(self) -> Array:
        """The whole column [rows, ...]; read-only where it lies on disk."""
        if self._buffer is None:
            return np.empty(0)
        if self._file is None:
            return self._buffer[: self._rows]
        return np.memmap(
            self._file, dtype=self._buffer.dtype, mode="r", shape=(self._rows, *self._buffer.shape[1:])
        )

    def _bytes(self) -> int:
        return 0 if self._buffer is None else self._rows * self._buffer[:1].nbytes

    def _shared(self, cells: list[Any]) -> list[Any]:
        """The cells, with one object for all that are equal as long as these are few."""
        known = self._known
        look_up = known.setdefault if len(known) < _FEW else known.get
        if set(map(type, cells)) <= {str, bytes, _NONE}:
            return list(map(look_up, cells, cells))
        # 1, 1.0 and True are equal as keys of a dictionary, but are not the same.
        keys = [(type(cell), tuple(cell) if isinstance(cell, list) else cell) for cell in cells]
        try:
            return list(map(look_up, keys, cells))
        except TypeError:
            return cells  # cells that are no keys: lists of lists

    def _fit(self, part: Array) -> Array:
        """The rows as the column holds them, after making the column hold such rows."""
        if self._buffer is None:
            self._buffer = np.empty((0, *part.shape[1:]), dtype=part.dtype)
        kind, shape = self._buffer.dtype, self._buffer.shape[1:]
        if part.dtype == kind and part.shape[1:] == shape:
            return part
        numbers = part.shape[1:] == shape and {part.dtype.kind, kind.kind} <= set("iuf")
        wider = np.promote_types(part.dtype, kind) if numbers else np.dtype(object)
        if wider != kind or part.shape[1:] != shape:
            whole = self.finish()
            self._file = None
            self._buffer = whole.astype(wider) if numbers else text_column(whole.tolist())
        return part.astype(wider) if numbers else text_column(part.tolist())

    def _grown(self, rows: int, part: Array) -> Array:
        """The buffer with room for as many rows; room that no row has reached takes no memory."""
        buffer = self._buffer
        if buffer is None or len(buffer) < rows:
            room = self._expected if rows <= self._expected else 2 * rows
            larger = np.empty((room, *part.shape[1:]), dtype=part.dtype)
            if buffer is not None:
                larger[: self._rows] = buffer[: self._rows]
            buffer = self._buffer = larger
        return buffer

    def _spill(self) -> None:
        buffer = self._buffer
        if buffer is None:
            return
        self._file = tempfile.TemporaryFile(prefix="mlx-eval-")  # noqa: SIM115 - lives as long as the column
        weakref.finalize(self, self._file.close)
        self._write(buffer[: self._rows])
        self._buffer = np.empty((0, *buffer.shape[1:]), dtype=buffer.dtype)

    def _write(self, part: Array) -> None:
        if self._file is None:
            raise ValueError("nothing to write to")
        try:
            self._file.write(np.ascontiguousarray(part).data)
            self._file.flush()
        except OSError as error:
            raise UsageError(
                f"The answers cannot be kept in {tempfile.gettempdir()}: {error.strerror}.",
                hint="Set TMPDIR to a folder with more room.",
            ) from error


class Names(Sequence[object]):
    """What rows are called: whole numbers, or text of a few bytes each.

    Attributes:
        missing: rows without a name.
        repeated: rows that have the name of an earlier one; known once all are there.
        first_repeat: the first row with an earlier row's name, and that earlier row.
    """

    def __init__(self, rows: int | None = None) -> None:
        self.missing = 0
        self.repeated = 0
        self.first_repeat: tuple[int, int] | None = None
        self._numbers: Column | None = Column(rows)
        self._content = bytearray()
        self._ends = Column(rows)
        self._digests = Column(rows)
        self._places: Array = np.empty(0, dtype=np.int64)

    def add(self, part: Array) -> None:
        """Append names [any]."""
        if self._numbers is not None:
            if part.dtype.kind in "iu":
                self._numbers.add(part.astype(np.int64))
                return
            before, self._numbers = self._numbers.finish(), None
            self._add_texts(before.tolist())
        self._add_texts(part.tolist())

    def finish(self) -> "Names":
        """Close the column after its last row; call it once."""
        held = self._digests if self._numbers is None else self._numbers
        self._places = self._ends.finish() if self._numbers is None else held.finish()
        values = held.finish()
        self.repeated = len(self) - distinct(values) - max(self.missing - 1, 0)
        if self.repeated:
            self.first_repeat = _first_repeat(values, None if self._numbers is not None else _digest(b""))
        return self

    def _add_texts(self, cells: list[Any]) -> None:
        self.missing += sum(map(is_empty, cells))
        texts = [_text(cell) for cell in cells]
        self._ends.add(np.cumsum([len(text) for text in texts], dtype=np.int64) + len(self._content))
        self._content += b"".join(texts)
        self._digests.add(np.array([_digest(text) for text in texts], dtype=np.uint64))

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, row: int) -> object: ...
    @overload
    def __getitem__(self, row: slice) -> Sequence[object]: ...
    def __getitem__(self, row: int | slice) -> object:
        if isinstance(row, slice):
            return [self[place] for place in range(*row.indices(len(self)))]
        place = range(len(self))[row]
        if self._numbers is not None:
            return int(self._places[place])
        start = int(self._places[place - 1]) if place else 0
        return self._content[start : int(self._places[place])].decode("utf-8", "replace")


def distinct(values: Array) -> int:
    """How many different values there are; NumPy's own way takes several times the memory."""
    ordered = np.sort(values)
    return int(np.count_nonzero(ordered[1:] != ordered[:-1])) + min(len(values), 1)


def _first_repeat(values: Array, missing: int | None) -> tuple[int, int]:
    """The first row whose value an earlier row has, and that row; `missing` is no value."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    again = ordered[1:] == ordered[:-1]
    if missing is not None:
        again &= ordered[1:] != np.uint64(missing)
    row = int(order[1:][again].min())
    return row, int(order[np.searchsorted(ordered, values[row])])


def _digest(text: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def _text(cell: Any) -> bytes:
    if is_empty(cell):
        return b""
    return cell if isinstance(cell, bytes) else str(cell).encode("utf-8", "surrogatepass")
