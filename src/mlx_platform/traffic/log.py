"""Read a traffic log: file by file, whatever state each is in, with an account of what could not be read."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from mlx_platform.core.errors import NotFoundError, UsageError
from mlx_platform.traffic import seal
from mlx_platform.traffic.record import Record
from mlx_platform.traffic.segment import (
    CORRUPT_SUFFIX,
    LATENESS,
    SEALED_SUFFIX,
    find_segments,
    folder_name,
    hour_of,
    is_plain,
    stem_of,
)

_HOUR = timedelta(hours=1)
_PAGE_BITS = 1024


@dataclass(slots=True)
class LogStats:
    """What was read and what was not; complete once the records have been read to the end.

    `readable` records were read, `records` of them passed the filters, `duplicates` had been met before;
    `torn` are half-written tails, `unreadable` damaged records, `quarantined` whole files, and `lost_rows`
    what those held: known where the file still says so, else estimated from its size. `gaps` are requests
    that a server numbered between its first and its last readable record and that no record has: they were
    not sampled, dropped under load, damaged, or went with their segment; `sampled` says that only a share of
    some requests was to be logged. Logs of others
    also have `unpaired` records, of which only the request or only the answer was found, and entries
    `beside` the requests, such as traced steps that call no model; `origins` counts who answered, in the
    words of the log.
    """

    records: int = 0
    segments: int = 0
    torn: int = 0
    quarantined: int = 0
    duplicates: int = 0
    unreadable: int = 0
    lost_rows: int = 0
    readable: int = 0
    gaps: int = 0
    sampled: bool = False
    unpaired: int = 0
    beside: int = 0
    format: str = "mlx"
    origins: Counter[str] = field(default_factory=Counter)

    @property
    def share_usable(self) -> float:
        """Readable records out of all that the segments in question hold or held; 1 when there is nothing."""
        lost = self.torn + self.unreadable + self.lost_rows
        return self.readable / (self.readable + lost) if self.readable + lost else 1.0

    def document(self) -> dict[str, Any]:
        return {
            "format": self.format,
            "records": self.records,
            "segments": self.segments,
            "torn": self.torn,
            "unreadable": self.unreadable,
            "quarantined": self.quarantined,
            "duplicates": self.duplicates,
            "gaps": self.gaps,
            "unpaired": self.unpaired,
            "beside": self.beside,
            "share_usable": self.share_usable,
        }


@dataclass(frozen=True, slots=True)
class Selection:
    """Which records are wanted: every given property must fit; `[since, until)` is half-open event time."""

    model: str | None = None
    version: str | None = None
    since: datetime | None = None
    until: datetime | None = None

    def wants(self, record: Record) -> bool:
        return (
            (self.model is None or record.model == self.model)
            and (self.version is None or record.version == self.version)
            and (self.since is None or record.time >= self.since)
            and (self.until is None or record.time < self.until)
        )

    def may_hold(self, path: Path) -> bool:
        """Whether a segment can hold wanted records, from its folders alone."""
        for key, value in (("model", self.model), ("version", self.version)):
            named = [part for part in path.parts if part.startswith(f"{key}=")]
            if value is not None and named and named[-1] != folder_name(key, value):
                return False
        hour = hour_of(path)
        if hour is None:
            return True
        if self.since is not None and hour + _HOUR <= self.since:
            return False
        return self.until is None or hour - LATENESS < self.until


class _Seen:
    """The keys of records met so far, as one bit each where sequence numbers lie close together."""

    def __init__(self) -> None:
        self._pages: dict[tuple[str, str, int], int] = {}
        self._ends: dict[tuple[str, str], list[int]] = {}  # the first and last number of a server's start

    def add(self, record: Record) -> bool:
        """Remember a record; False when it was there."""
        seq = record.seq
        number, bit = divmod(seq, _PAGE_BITS)
        page = (record.server_id, record.boot_id, number)
        bits = self._pages.get(page, 0)
        if bits >> bit & 1:
            return False
        self._pages[page] = bits | 1 << bit
        ends = self._ends.setdefault(page[:2], [seq, seq])
        if seq > ends[1]:
            ends[1] = seq
        elif seq < ends[0]:
            ends[0] = seq
        return True

    def gaps(self) -> int:
        """How many numbers are missing between first ones and last ones."""
        numbered = sum(last - first + 1 for first, last in self._ends.values())
        return numbered - sum(bits.bit_count() for bits in self._pages.values())


def has_segments(folder: Path) -> bool:
    """Whether a folder is a traffic log, or a part of one."""
    return folder.is_dir() and bool(find_segments(folder))


def read_log(
    folder: Path,
    *,
    model: str | None = None,
    version: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> tuple[Iterator[Record], LogStats]:
    """Read the records of a traffic log, or of a part of its folders, a few thousand at a time.

    Segments come oldest hour first, open ones as well; records keep their order within a segment. A sealed
    file that is damaged is renamed to `*.corrupt` where that is allowed, and counted.

    Args:
        folder: of the log.
        model: only this model's records.
        version: only this version's.
        since: the first moment.
        until: the moment after the last.

    Returns:
        The records, and statistics that fill while they are read.

    Raises:
        NotFoundError: there is no such folder.
    """
    if not folder.is_dir():
        raise NotFoundError(
            f"There is no traffic log at {folder}.", hint="Write one with: mlx serve --traffic DIR"
        )
    stats = LogStats()
    selection = Selection(model, version, since, until)
    return _Reader(selection, stats).read(find_segments(folder)), stats


class _Reader:
    """Reads segments one after another and keeps the account."""

    def __init__(self, selection: Selection, stats: LogStats) -> None:
        self._selection = selection
        self._stats = stats
        self._seen = _Seen()
        self._sealed_rows = 0
        self._sealed_bytes = 0
        self._broken_bytes: list[int] = []

    def read(self, segments: list[Path]) -> Iterator[Record]:
        for path in segments:
            if not self._selection.may_hold(path):
                continue
            self._stats.segments += 1
            for record in self._records(path):
                self._stats.readable += 1
                fresh = self._seen.add(record)
                if record.sampling < 1:
                    self._stats.sampled = True
                if not self._selection.wants(record):
                    continue
                if fresh:
                    self._stats.records += 1
                    yield record
                else:
                    self._stats.duplicates += 1
        self._stats.gaps = self._seen.gaps()
        for size in self._broken_bytes:
            per_row = self._sealed_bytes / self._sealed_rows if self._sealed_rows else size
            self._stats.lost_rows += max(1, round(size / max(1.0, per_row)))

    def _records(self, path: Path) -> Iterator[Record]:
        try:
            if path.name.endswith(SEALED_SUFFIX):
                yield from self._sealed(path)
            else:
                yield from self._open(path)
        except FileNotFoundError:
            # Sealed, or deleted for its age, after the folders were listed.
            sealed = path.with_name(stem_of(path) + SEALED_SUFFIX)
            if sealed != path and is_plain(sealed):
                yield from self._sealed(sealed)

    def _open(self, path: Path) -> Iterator[Record]:
        losses = seal.Losses()
        try:
            yield from seal.read_open(path, losses)
        finally:
            self._stats.torn += losses.torn
            self._stats.unreadable += losses.unreadable

    def _sealed(self, path: Path) -> Iterator[Record]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        size = path.stat().st_size
        rows = total = 0
        try:
            with pq.ParquetFile(path, page_checksum_verification=True) as file:
                total = file.metadata.num_rows
                self._take_losses(file.metadata.metadata or {}, path)
                for batch in file.iter_batches(batch_size=seal.ROW_GROUP):
                    for record in seal.from_batch(batch):
                        rows += 1
                        if record is None:
                            self._stats.unreadable += 1
                        else:
                            yield record
        except FileNotFoundError:
            raise
        except (OSError, pa.ArrowException, UsageError) as error:
            lost = total - rows
            if getattr(error, "errno", None) or isinstance(error, UsageError):
                # The disk or the rights fail, or it is no segment of ours: the file is left alone.
                self._stats.unreadable += max(1, lost)
                return
            self._quarantine(path)
            if total:
                self._stats.lost_rows += lost
            else:
                self._broken_bytes.append(size)
        else:
            self._sealed_rows += rows
            self._sealed_bytes += size

    def _take_losses(self, metadata: Mapping[bytes, bytes], path: Path) -> None:
        """Count again what was cut when the segment was sealed."""
        if metadata.get(seal.SCHEMA_KEY.encode()) != seal.SCHEMA.encode():
            raise UsageError(f"{path} is no traffic-log segment of the schema {seal.SCHEMA}.")
        with suppress(ValueError):
            self._stats.torn += int(metadata.get(seal.TORN_KEY.encode(), 0))
            self._stats.unreadable += int(metadata.get(seal.UNREADABLE_KEY.encode(), 0))

    def _quarantine(self, path: Path) -> None:
        self._stats.quarantined += 1
        with suppress(OSError):
            path.replace(path.with_name(path.name + CORRUPT_SUFFIX))
