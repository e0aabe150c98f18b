"""What became of requests, told later: outcomes and labels, in files of their own beside the traffic log.

    <folder>/feedback/date=YYYY-MM-DD/<server>-<boot>-<number>.jsonl

A file has one writer, which only ever appends; a line is framed as those of open segments are. The day is the
one on which something was told, in UTC. What is told again, or otherwise, is written again: readers decide.
"""

import errno
import math
import os
import re
import secrets
import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any, Self

import orjson

from mlx_platform.core.clock import Clock, rfc3339, system_clock
from mlx_platform.core.errors import NotFoundError, UsageError
from mlx_platform.core.text import printable
from mlx_platform.traffic import frame
from mlx_platform.traffic.segment import fsync_folder, is_plain, make_private

FOLDER = "feedback"
SUFFIX = ".jsonl"
FILE_BYTES = 16 * 1024 * 1024
DISK_BYTES = 1024**3

MOST_OUTCOMES = 16
"""Of one request in one entry."""
LONGEST_ID = 128
LONGEST_TEXT = 256
LARGEST_NUMBER = 1e15
"""Of an outcome, either way: sums of squares of such numbers are still far from infinity."""

_MEMBERS = frozenset(("id", "outcomes", "time", "source", "version"))
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_DAY = timedelta(days=1)

Value = bool | int | float | str
"""Whether something happened, how much it was, or a label."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feedback:
    """What is known of one request, since when, who said so, and who answered it, if that was said."""

    request_id: str
    outcomes: Mapping[str, Value]
    time: datetime
    source: str = ""
    version: str = ""

    @classmethod
    def of(cls, document: Any, *, now: datetime, source: str = "") -> Self:
        """Read what somebody wrote, such as `{"id": "a1", "outcomes": {"clicked": true}}`.

        Args:
            document: parsed JSON; there may be a time, a source and a version as well.
            now: the time where it names none.
            source: where it names none.

        Raises:
            UsageError: says what is wrong, and repeats nothing of it.
        """
        if type(document) is not dict or not document.keys() <= _MEMBERS:
            raise UsageError(
                "An entry is an object with id and outcomes, and perhaps time, source and version."
            )
        return cls(
            request_id=_text(document.get("id"), "id", LONGEST_ID),
            outcomes=_outcomes(document.get("outcomes")),
            time=_moment(document["time"]) if "time" in document else now.astimezone(UTC),
            source=cls.source_of(document["source"]) if "source" in document else source,
            version=_text(document["version"], "version", LONGEST_ID) if "version" in document else "",
        )

    @staticmethod
    def source_of(value: Any) -> str:
        """Read who tells something.

        Raises:
            UsageError: it is no text, or too long a one.
        """
        return _text(value, "source", LONGEST_ID)

    def document(self) -> dict[str, Any]:
        """The JSON form, which `of` reads."""
        head = {"id": self.request_id, "outcomes": dict(self.outcomes), "time": rfc3339(self.time)}
        more = {"source": self.source, "version": self.version}
        return head | {name: text for name, text in more.items() if text}


def _text(value: Any, name: str, longest: int) -> str:
    if type(value) is not str or not 0 < len(value) <= longest or _CONTROL.search(value):
        raise UsageError(f"The {name} of an entry is a text of 1 to {longest} printable characters.")
    return value


def _outcomes(value: Any) -> dict[str, Value]:
    if type(value) is not dict or not 0 < len(value) <= MOST_OUTCOMES:
        raise UsageError(f"The outcomes of an entry are an object with 1 to {MOST_OUTCOMES} members.")
    for name, outcome in value.items():
        if not _NAME.fullmatch(name):
            raise UsageError("The name of an outcome has up to 64 letters, digits, dots, dashes and lines.")
        if not _is_outcome(outcome):
            raise UsageError(
                f"An outcome is true, false, a number up to {LARGEST_NUMBER:g}, "
                f"or a text of up to {LONGEST_TEXT} characters."
            )
    return value


def _is_outcome(value: Any) -> bool:
    if type(value) is str:
        return 0 < len(value) <= LONGEST_TEXT
    if type(value) is bool:
        return True
    return type(value) in {int, float} and math.isfinite(value) and abs(value) <= LARGEST_NUMBER


def _moment(value: Any) -> datetime:
    try:
        moment = datetime.fromisoformat(value)
        if moment.tzinfo is not None:
            return moment.astimezone(UTC)
    except (TypeError, ValueError, OverflowError):
        pass
    raise UsageError("The time of an entry is one with a zone, such as 2026-03-08T06:59:58Z.")


class FeedbackWriter:
    """Appends entries to files of its own; any thread may ask it.

    Args:
        folder: of the traffic log.
        owner: the first part of every file name, `<server>-<boot>`; nobody else may use it.
        disk_bytes: what all feedback in the folder may take; the oldest files make room.
        file_bytes: the size at which a file is closed.
        clock: for the days.
    """

    def __init__(
        self,
        folder: Path,
        *,
        owner: str = "",
        disk_bytes: int = DISK_BYTES,
        file_bytes: int = FILE_BYTES,
        clock: Clock = system_clock,
    ) -> None:
        self.deleted_files = 0
        self._folder = folder / FOLDER
        self._owner = owner or f"{_host()}-{secrets.token_hex(6)}"
        self._disk_bytes = disk_bytes
        self._file_bytes = max(1, min(file_bytes, disk_bytes // 8))
        self._clock = clock
        self._numbers = count(1)
        self._lock = Lock()
        self._handle = -1
        self._path = Path()
        self._day = date.min
        self._size = 0

    def append(self, entries: Iterable[Feedback]) -> None:
        """Write entries so that they survive a loss of power: all of them, or none.

        Raises:
            OSError: nothing was written.
        """
        lines = b"".join(frame.seal_line(orjson.dumps(entry.document())) for entry in entries)
        if not lines:
            return
        with self._lock:
            self._turn_over(len(lines))
            try:
                self._write(lines)
            except OSError:
                self._let_go()  # what a failing disk kept of the file is unknown
                raise

    def close(self) -> None:
        """Let go of the open file."""
        with self._lock:
            self._let_go()

    def _turn_over(self, size: int) -> None:
        """Have a file open that takes so many bytes more today."""
        today = self._clock().astimezone(UTC).date()
        full = self._size and self._size + size > self._file_bytes
        if self._handle >= 0 and today == self._day and not full:
            return
        self._let_go()
        self._make_room()
        folder = self._folder / f"date={today:%Y-%m-%d}"
        make_private(folder)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._path = folder / f"{self._owner}-{next(self._numbers):06d}{SUFFIX}"
        self._handle = os.open(self._path, flags, 0o600)
        self._day, self._size = today, 0
        fsync_folder(folder)

    def _write(self, lines: bytes) -> None:
        written = os.write(self._handle, lines)
        if written != len(lines):
            os.ftruncate(self._handle, self._size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        os.fsync(self._handle)
        self._size += written

    def _make_room(self) -> None:
        """Delete the oldest files until one more fits."""
        sizes = [(path, path.stat().st_size) for path in _files(self._folder)]
        total = sum(size for _, size in sizes) + self._file_bytes
        for path, size in sizes:
            if total <= self._disk_bytes:
                break
            path.unlink(missing_ok=True)
            total -= size
            self.deleted_files += 1

    def _let_go(self) -> None:
        handle, self._handle = self._handle, -1
        if handle < 0:
            return
        os.close(handle)
        if not self._size:
            self._path.unlink(missing_ok=True)


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9_.]", "_", socket.gethostname())[:64] or "server"


@dataclass(slots=True)
class FeedbackStats:
    """What was read and what was not; complete once the entries have been read to the end.

    `duplicates` said the same again about a request, `contradictions` said something else. `torn` are
    half-written tails, `unreadable` damaged lines.
    """

    entries: int = 0
    files: int = 0
    duplicates: int = 0
    contradictions: int = 0
    torn: int = 0
    unreadable: int = 0

    def document(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in self.__slots__}


def read_feedback(
    folder: Path, *, since: datetime | None = None, until: datetime | None = None
) -> tuple[Iterator[Feedback], FeedbackStats]:
    """Read the feedback beside a traffic log, in the order of the days on which it was told.

    Args:
        folder: of the traffic log.
        since: the first moment of an entry's own time.
        until: the moment after the last.

    Returns:
        The entries as they were told, and statistics that fill while they are read.

    Raises:
        NotFoundError: there is no such folder.
    """
    if not folder.is_dir():
        raise NotFoundError(
            f"There is no traffic log at {printable(str(folder))}.",
            hint="Write one with: mlx serve --traffic DIR",
        )
    stats = FeedbackStats()
    return _read(folder / FOLDER, since, until, stats), stats


def _read(
    folder: Path, since: datetime | None, until: datetime | None, stats: FeedbackStats
) -> Iterator[Feedback]:
    for path in _files(folder):
        # Nothing is told before it happens, but for clocks that differ.
        if since is not None and _day_of(path) < since.astimezone(UTC).date() - _DAY:
            continue
        stats.files += 1
        for entry in _entries(path, stats):
            if (since is None or entry.time >= since) and (until is None or entry.time < until):
                stats.entries += 1
                yield entry


def _entries(path: Path, stats: FeedbackStats) -> Iterator[Feedback]:
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return  # made room for others after the folders were listed
    with file:
        while line := file.readline(frame.LINE_CAP):
            if not line.endswith(b"\n"):
                stats.torn += 1
                return
            try:
                yield Feedback.of(frame.open_line(line), now=datetime.now(UTC))
            except UsageError:
                stats.unreadable += 1


def gather(entries: Iterable[Feedback], stats: FeedbackStats) -> dict[str, dict[str, Value]]:
    """The outcomes by request and name; where they contradict each other, those of the latest time.

    Args:
        entries: in any order.
        stats: of the folder that they come from.
    """
    found: dict[str, dict[str, Value]] = {}
    times: dict[tuple[str, str], datetime] = {}
    for entry in entries:
        known = found.setdefault(entry.request_id, {})
        for name, value in entry.outcomes.items():
            place = (entry.request_id, name)
            if name in known:
                same = known[name] == value and (type(known[name]) is bool) == (type(value) is bool)
                stats.duplicates += same
                stats.contradictions += not same
                if entry.time < times[place]:
                    continue
            known[name] = value
            times[place] = entry.time
    return found


def _files(folder: Path) -> list[Path]:
    """All files of a folder, oldest day first."""
    paths = [path for path in folder.glob(f"date=*/*{SUFFIX}") if is_plain(path) and _day_of(path) > date.min]
    return sorted(paths)


def _day_of(path: Path) -> date:
    try:
        return date.fromisoformat(path.parent.name.removeprefix("date="))
    except ValueError:
        return date.min
