"""Segments: where a record's file lies, and the open file that one writer appends to.

    <folder>/model=M/version=V/date=YYYY-MM-DD/hour=HH/<server>-<boot>-<number>.jsonl.open    being written
                                                                              .parquet        sealed
                                                                              .corrupt        quarantined

An open segment is locked (flock) by its writer for as long as that process lives; one that nobody holds is
an orphan, which `seal.recover` turns into a sealed one.
"""

import errno
import fcntl
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self
from urllib.parse import quote

from mlx_platform.traffic.record import Record

OPEN_SUFFIX = ".jsonl.open"
SEALED_SUFFIX = ".parquet"
CORRUPT_SUFFIX = ".corrupt"
LATENESS = timedelta(hours=1)
"""How far before its hour a record of a segment may lie: the slack readers allow when they skip by hour."""

_NAME_CAP = 200
_HOUR = timedelta(hours=1)
_flush_data = getattr(os, "fdatasync", os.fsync)


def folder_name(key: str, value: str) -> str:
    """`model=digits`, percent-encoded, and shortened to what every file system takes."""
    text = quote(value, safe="")
    if len(text) > _NAME_CAP:
        text = text[: _NAME_CAP - 17] + "-" + hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    return f"{key}={text}"


@dataclass(frozen=True, slots=True)
class Partition:
    """A model's version and the hour (UTC) of event time that a segment is for."""

    model: str
    version: str
    hour: datetime

    @classmethod
    def at(cls, model: str, version: str, moment: datetime) -> Self:
        """The partition of an event."""
        return cls(model, version, moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0))

    @classmethod
    def of(cls, record: Record) -> Self:
        return cls.at(record.model, record.version, record.time)

    @property
    def path(self) -> Path:
        return Path(
            folder_name("model", self.model),
            folder_name("version", self.version),
            f"date={self.hour:%Y-%m-%d}",
            f"hour={self.hour:%H}",
        )

    def holds(self, record: Record) -> bool:
        """Whether this is a record's own partition."""
        return (record.model, record.version) == (self.model, self.version) and (
            self.hour <= record.time < self.hour + _HOUR
        )

    def takes(self, later: "Partition") -> bool:
        """Whether a record of another partition may join: the same hour, or the one before, coming late."""
        return (later.model, later.version) == (self.model, self.version) and (
            self.hour - LATENESS <= later.hour <= self.hour
        )


def hour_of(path: Path) -> datetime | None:
    """The hour that a segment's folders name; None when they name none."""
    parts = dict(part.split("=", 1) for part in path.parts if "=" in part)
    try:
        day = datetime.strptime(parts["date"], "%Y-%m-%d").replace(tzinfo=UTC)
        return day + timedelta(hours=int(parts["hour"]))
    except (KeyError, ValueError, OverflowError):
        return None


def stem_of(path: Path) -> str:
    """A segment's name without the suffix that tells its state."""
    return path.name.removesuffix(OPEN_SUFFIX).removesuffix(SEALED_SUFFIX)


def find_segments(folder: Path) -> list[Path]:
    """Every open and sealed segment below a folder, oldest hour first; other files are none of ours.

    Links, pipes and folders of such a name are none either: a writer makes plain files.
    """
    found: list[tuple[datetime, str, Path]] = []
    root = folder.resolve()
    for suffix in (OPEN_SUFFIX, SEALED_SUFFIX):
        for path in root.rglob(f"*{suffix}"):
            hour = hour_of(path)
            if hour is not None and is_plain(path):
                found.append((hour, str(path), path))
    return [path for _, _, path in sorted(found)]


def is_plain(path: Path) -> bool:
    """Whether a path is a regular file, and no link to one."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def fsync_folder(folder: Path) -> None:
    """Make a creation or a rename in a folder survive a power loss."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def try_lock(handle: int) -> bool:
    """Take the writer's lock of an open segment; False when its writer lives."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class OpenSegment:
    """The file that a writer appends to. Every method may raise OSError; the writer decides what then."""

    def __init__(self, path: Path, partition: Partition, handle: int) -> None:
        self.path = path
        self.partition = partition
        self.size = 0
        self.records = 0
        self._handle = handle

    @classmethod
    def create(cls, root: Path, partition: Partition, owner: str, numbers: Iterator[int]) -> Self:
        """Make the next file of an owner (`<server>-<boot>`), locked, in folders of mode 0700."""
        folder = root / partition.path
        make_private(folder)
        while True:
            path = folder / f"{owner}-{next(numbers):06d}{OPEN_SUFFIX}"
            handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            # Between the two calls somebody who recovers orphans may have taken the empty file away.
            if try_lock(handle) and os.fstat(handle).st_nlink:
                break
            os.close(handle)
        segment = cls(path, partition, handle)
        try:
            fsync_folder(folder)
        except OSError:
            segment.close()
            raise
        return segment

    def append(self, *lines: bytes) -> None:
        """Write whole lines with one call, so that they survive the death of the process; all or none."""
        content = b"".join(lines)
        written = os.write(self._handle, content)
        if written != len(content):
            os.ftruncate(self._handle, self.size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        self.size += written
        self.records += len(lines)

    def sync(self) -> None:
        _flush_data(self._handle)

    def close(self) -> None:
        """Let go of the file and its lock; it then is an orphan to seal, or gone if it is empty."""
        handle, self._handle = self._handle, -1
        if handle < 0:
            return  # closing a number twice could close somebody else's file
        if self.size == 0:
            with suppress(OSError):
                self.path.unlink()
        os.close(handle)


def make_private(folder: Path) -> None:
    """Make a folder and those above it; the new ones with mode 0700."""
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for new in reversed(missing):
        new.mkdir(mode=0o700, exist_ok=True)
