"""Where the writer's thread puts lines: open segments, rotation, syncing, sealing and the disk bound."""

import errno
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, timedelta
from itertools import count
from pathlib import Path

from mlx_platform.core.clock import Clock
from mlx_platform.traffic.segment import (
    OPEN_SUFFIX,
    OpenSegment,
    Partition,
    find_segments,
    is_plain,
    try_lock,
)

SEGMENT_BYTES = 64 * 1024 * 1024
SEGMENT_RECORDS = 200_000
SYNC_SECONDS = 1.0
SYNC_BYTES = 4 * 1024 * 1024
_IDLE_GRACE = timedelta(minutes=1)
_OPEN_AT_ONCE = 8

_log = logging.getLogger(__name__)


class Sink:
    """Owns the open segments of one writer, one for each version that answers; used by one thread.

    Args:
        folder: of the log.
        owner: `<server>-<boot>`, the first part of every file name.
        disk_bytes: what all segments of the folder may take together.
        clock: closes segments whose hour is over.
        segment_bytes: the size at which a segment is closed.
        segment_records: the number of records at which it is.
    """

    def __init__(
        self,
        folder: Path,
        *,
        owner: str,
        disk_bytes: int,
        clock: Clock,
        segment_bytes: int = SEGMENT_BYTES,
        segment_records: int = SEGMENT_RECORDS,
    ) -> None:
        self.deleted_segments = 0
        self.sync_errors = 0
        self._folder = folder
        self._owner = owner
        self._disk_bytes = disk_bytes
        self._clock = clock
        self._segment_bytes = max(1, min(segment_bytes, disk_bytes // 8))
        self._segment_records = segment_records
        self._numbers: Iterator[int] = count(1)
        self._open: dict[tuple[str, str], OpenSegment] = {}
        # What a failed sync may have lost; written again into a new segment, where readers remove duplicates.
        self._unsynced: list[tuple[OpenSegment, Partition, Sequence[bytes]]] = []
        self._unsynced_bytes = 0
        self.unsynced = 0
        """How many written records a loss of power would still take."""
        self._synced_at = time.monotonic()
        self._sealer: subprocess.Popen[bytes] | None = None

    def write(self, partition: Partition, lines: Sequence[bytes]) -> None:
        """Append lines to their segment: at once, or where they fill more than one, one after the other.

        Raises:
            OSError: they are not written, or not all of them; the next may be.
        """
        size = sum(map(len, lines))
        if size > self._segment_bytes and len(lines) > 1:
            for line in lines:
                self.write(partition, (line,))
            return
        segment = self._append(partition, lines, size)
        self._unsynced.append((segment, partition, lines))
        self._unsynced_bytes += size
        self.unsynced += len(lines)
        if self._unsynced_bytes >= SYNC_BYTES:
            self.sync()

    def _append(self, partition: Partition, lines: Sequence[bytes], size: int) -> OpenSegment:
        segment = self._segment(partition, size, len(lines))
        try:
            segment.append(*lines)
        except OSError as error:
            if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
                self._let_go(segment)  # what a failing disk kept of the file is unknown
            raise
        return segment

    def _segment(self, partition: Partition, size: int, records: int) -> OpenSegment:
        key = (partition.model, partition.version)
        segment = self._open.get(key)
        if segment and not (
            segment.partition.takes(partition)
            and (segment.size == 0 or segment.size + size <= self._segment_bytes)
            and (segment.size == 0 or segment.records + records <= self._segment_records)
        ):
            self.sync()
            self._rotate(segment)
            segment = None
        if segment is None:
            if len(self._open) >= _OPEN_AT_ONCE:
                self._rotate(next(iter(self._open.values())))
            segment = OpenSegment.create(self._folder, partition, self._owner, self._numbers)
            self._open[key] = segment
        return segment

    def tick(self) -> None:
        """The chores between records: sync what is a second old, close segments whose hour is over."""
        if self._unsynced and time.monotonic() - self._synced_at >= SYNC_SECONDS:
            self.sync()
        over = self._clock().astimezone(UTC) - timedelta(hours=1) - _IDLE_GRACE
        for segment in [kept for kept in self._open.values() if kept.partition.hour <= over]:
            self.sync()
            self._rotate(segment)
        if self._sealer and self._sealer.poll() is not None:
            if self._sealer.returncode:
                _log.warning("a traffic-log segment could not be sealed; it stays readable as it is")
            self._sealer = None

    def sync(self) -> None:
        """Make what was written durable. A sync that fails is never tried again on the same file."""
        self._synced_at = time.monotonic()
        failed = []
        for segment in list(self._open.values()):
            try:
                segment.sync()
            except OSError:
                self.sync_errors += 1
                failed.append(segment)
                self._let_go(segment)
        again = [(partition, lines) for segment, partition, lines in self._unsynced if segment in failed]
        self._unsynced = []
        self._unsynced_bytes = self.unsynced = 0
        for partition, lines in again:
            with suppress(OSError):
                self._append(partition, lines, sum(map(len, lines)))

    def _let_go(self, segment: OpenSegment) -> None:
        self._open = {key: kept for key, kept in self._open.items() if kept is not segment}
        with suppress(OSError):
            segment.close()

    def _rotate(self, segment: OpenSegment) -> None:
        self._let_go(segment)
        self.make_room()
        self.seal_orphans()

    def make_room(self) -> None:
        """Delete the oldest segments that nobody writes, until one more fits beside one being sealed."""
        held = {segment.path for segment in self._open.values()}
        sizes: list[tuple[Path, int]] = []
        for path in find_segments(self._folder):
            with suppress(OSError):
                sizes.append((path, path.stat().st_size))
        total = sum(size for _, size in sizes) + 2 * self._segment_bytes
        for path, size in sizes:
            if total <= self._disk_bytes:
                break
            if path not in held and _delete(path):
                total -= size
                self.deleted_segments += 1

    def seal_orphans(self) -> None:
        """Start the background process that seals what no writer holds, unless one is at it."""
        if self._sealer and self._sealer.poll() is None:
            return
        command = [sys.executable, "-P", "-m", "mlx_platform.traffic.seal", str(self._folder)]
        nowhere = subprocess.DEVNULL
        try:
            self._sealer = subprocess.Popen(command, stdin=nowhere, stdout=nowhere, stderr=nowhere)
        except OSError as error:
            _log.warning("cannot start the sealing of traffic-log segments: %s", error)

    def has_orphans(self) -> bool:
        held = {segment.path for segment in self._open.values()}
        return any(path not in held and is_plain(path) for path in self._folder.rglob(f"*{OPEN_SUFFIX}"))

    def close(self, deadline: float) -> None:
        """Sync, close and seal everything; `deadline` on the monotonic clock bounds the sealing."""
        self.sync()
        for segment in list(self._open.values()):
            self._let_go(segment)
        self._wait(deadline)
        if self.has_orphans():
            self.seal_orphans()
            self._wait(deadline)

    def _wait(self, deadline: float) -> None:
        if self._sealer:
            with suppress(subprocess.TimeoutExpired):
                self._sealer.wait(max(0.0, deadline - time.monotonic()))


def _delete(path: Path) -> bool:
    """Delete a segment unless its writer lives."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if not try_lock(handle):
            return False
        path.unlink()
    except OSError:
        return False
    finally:
        os.close(handle)
    return True
