"""A data file that must stay as it is while it is read."""

import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from mlx_platform.core.errors import NotFoundError, UndecidedError, UsageError
from mlx_platform.core.text import first_line, printable

_CHUNK = 1 << 20
_COPY = "Wait until it is complete, or name a copy that nobody writes to."


class DataFile:
    """A regular file as it was when it was first seen.

    Attributes:
        path: where it is.
        size: bytes.

    Raises:
        NotFoundError: there is no such file.
        UsageError: it is a pipe, a device or a socket, or may not be read.
        UndecidedError: it is empty.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._identity = self._look()
        self.size = self._identity[2]
        if not self.size:
            raise UndecidedError(f"{path} is empty.")

    def open(self) -> BinaryIO:
        """The file from its beginning.

        Raises:
            UsageError: it is another one by now.
        """
        self.check()
        try:
            # A pipe that took the file's place would otherwise be waited for.
            handle = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise UsageError(f"{self.path} cannot be read: {error.strerror}.") from error
        return os.fdopen(handle, "rb", buffering=0)

    def check(self) -> None:
        """Refuse a file that was written to, cut off or replaced since it was first seen.

        Raises:
            UsageError: it was.
        """
        if self._look() != self._identity:
            raise self.changed()

    def changed(self) -> UsageError:
        return UsageError(f"{self.path} changed while it was read.", hint=_COPY)

    def sha256(self) -> str:
        """The SHA-256 of the bytes, in hex."""
        digest = hashlib.sha256()
        with reading(self.path), self.open() as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
        self.check()
        return digest.hexdigest()

    def _look(self) -> tuple[int, int, int, int]:
        try:
            found = self.path.stat()
        except FileNotFoundError as error:
            raise NotFoundError(f"There is no data file {self.path}.") from error
        except (OSError, ValueError) as error:
            # A name with a null character, from a file of gates, is a ValueError.
            raise UsageError(f"{printable(str(self.path))} cannot be read: {first_line(error)}.") from error
        if not stat.S_ISREG(found.st_mode):
            raise UsageError(
                f"{self.path} is no regular file, and data are read more than once.",
                hint="Write them to a file first.",
            )
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what a reader throws at a damaged file into a sentence.

    Raises:
        UsageError: the file cannot be read.
    """
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {first_line(error)}.") from error


Advance = Callable[[int], None]


class Utf8File:
    """Bytes on their way to a parser, read in order: hashed, counted, and refused where they are not UTF-8.

    Attributes:
        offset: bytes read so far.
        sha256: of these.
        last: the last of them that is no space or end of line.
    """

    def __init__(self, file: DataFile, advance: Advance | None = None) -> None:
        import codecs

        self._path = file.path
        self._file = file.open()
        self._decode = codecs.getincrementaldecoder("utf-8")().decode
        self._advance = advance
        self._lines = 0
        self.sha256 = hashlib.sha256()
        self.offset = 0
        self.last = b""
        self.closed = False

    def read(self, size: int = -1) -> bytes:
        """The next bytes, up to `size`; none at the end.

        Raises:
            UsageError: they are no UTF-8; names the line.
        """
        chunk = self._file.read(size)
        try:
            self._decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            # What was held back of the chunk before is part of the error's object.
            line = 1 + self._lines + error.object[: error.start].count(b"\n")
            raise self._refuse(error.object, line, error.object[error.start]) from error
        self._lines += chunk.count(b"\n")
        self.last = chunk.rstrip()[-1:] or self.last
        self.sha256.update(chunk)
        self.offset += len(chunk)
        if self._advance:
            self._advance(len(chunk))
        return chunk

    def _refuse(self, content: bytes, line: int, byte: int) -> UsageError:
        if not self.offset and content[:2] in {b"\xff\xfe", b"\xfe\xff"}:
            return UsageError(f"{self._path} is UTF-16 text, not UTF-8.", hint="Save it as UTF-8.")
        return UsageError(
            f"{self._path}, line {line:,}: the byte 0x{byte:02x} is no UTF-8 text.",
            hint="Save the whole file as UTF-8; parts of it may have come from elsewhere.",
            line=line,
        )

    # What a parser asks of a file.

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        self._file.close()
        self.closed = True
