"""Columns that an evaluation keeps for every row, as small as they can be."""

import hashlib
import tempfile
from collections.abc import Hashable, Sequence
from typing import IO, Any, overload

import numpy as np

from mlx_platform.core.errors import UsageError
from mlx_platform.core.tensors import Array, text_column
from mlx_platform.inference.sources.arrays import joined

IN_MEMORY = 64 << 20
"""Bytes of a column beyond which it moves to a temporary file that nobody else can open."""
_FEW = 65_536


class Column:
    """A column that grows; numbers move to disk when they are many, equal texts share one object."""

    def __init__(self, in_memory: int = IN_MEMORY) -> None:
        self._in_memory = in_memory
        self._parts: list[Array] = []
        self._held = 0
        self._known: dict[Hashable, Any] = {}
        self._file: IO[bytes] | None = None
        self._kind: np.dtype[Any] | None = None
        self._tail: tuple[int, ...] = ()
        self._rows = 0

    def add(self, part: Array) -> None:
        """Append rows [any, ...].

        Raises:
            UsageError: the disk is full.
        """
        if part.dtype.kind == "O":
            part = text_column([self._shared(cell) for cell in part.tolist()])
        if self._file is not None and (part.dtype != self._kind or part.shape[1:] != self._tail):
            self._parts = [self._read()]
            self._file = None
        if self._file is not None:
            self._write(part)
            return
        # A batch may be a view of something larger.
        self._parts.append(part if part.base is None else part.copy())
        self._held += part.nbytes
        if self._held > self._in_memory and part.dtype.kind != "O":
            self._spill()

    def finish(self) -> Array:
        """The whole column [rows, ...], after its last row; read-only where it lies on disk."""
        if self._file is not None:
            return self._read()
        parts, self._parts = self._parts, []
        return joined(parts)

    def _shared(self, cell: Any) -> Any:
        key = tuple(cell) if isinstance(cell, list) else cell
        if not isinstance(key, Hashable):
            return cell
        found = self._known.get((type(cell), key))
        if found is None:
            if len(self._known) < _FEW:
                self._known[type(cell), key] = cell
            return cell
        return found

    def _spill(self) -> None:
        whole = joined(self._parts)
        if whole.dtype.kind == "O":
            return
        self._parts = []
        self._kind, self._tail, self._rows = whole.dtype, whole.shape[1:], 0
        self._file = tempfile.TemporaryFile(prefix="mlx-eval-")  # noqa: SIM115 - lives as long as the column
        self._write(whole)

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
        self._rows += len(part)

    def _read(self) -> Array:
        if self._file is None or self._kind is None:
            raise ValueError("nothing was written")
        return np.memmap(self._file, dtype=self._kind, mode="r", shape=(self._rows, *self._tail))


class Names(Sequence[object]):
    """What rows are called, as text of a few bytes each.

    Attributes:
        missing: rows without a name.
        repeated: rows that have the name of an earlier one; known once all are there.
    """

    def __init__(self) -> None:
        self.missing = 0
        self.repeated = 0
        self._size = 0
        self._texts: list[bytes] = []
        self._ends = Column()
        self._digests = Column()
        self._content = np.empty(0, dtype=np.uint8)
        self._places = np.empty(0, dtype=np.int64)

    def add(self, part: Array) -> None:
        """Append names [any]."""
        cells = part.tolist()
        self.missing += sum(cell is None or cell != cell for cell in cells)  # noqa: PLR0124 - NaN is no name
        texts = [_text(cell) for cell in cells]
        ends = np.cumsum([len(text) for text in texts], dtype=np.int64) + self._size
        self._size += sum(map(len, texts))
        self._texts.append(b"".join(texts))
        self._ends.add(ends)
        found = b"".join(hashlib.blake2b(text, digest_size=8).digest() for text in texts)
        self._digests.add(np.frombuffer(found, dtype=np.uint64))

    def finish(self) -> "Names":
        """Close the column after its last row; call it once."""
        self._content = np.frombuffer(b"".join(self._texts), dtype=np.uint8)
        self._texts = []
        self._places = self._ends.finish()
        self.repeated = len(self) - len(np.unique(self._digests.finish())) - max(self.missing - 1, 0)
        return self

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
        start = int(self._places[place - 1]) if place else 0
        return self._content[start : int(self._places[place])].tobytes().decode("utf-8", "replace")


def _text(cell: Any) -> bytes:
    if isinstance(cell, bytes):
        return cell
    return b"" if cell is None else str(cell).encode("utf-8", "surrogatepass")
