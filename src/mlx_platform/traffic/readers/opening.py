"""One call for every log: whose it is shows in what its files hold."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from mlx_platform.core.errors import NotFoundError, UsageError
from mlx_platform.core.text import did_you_mean, printable
from mlx_platform.traffic.log import LogStats, Selection, has_segments, read_log
from mlx_platform.traffic.readers import databricks, kserve, openinference, sagemaker, triton
from mlx_platform.traffic.readers.decode import Side, decode_request, decode_response
from mlx_platform.traffic.readers.documents import columns_of_table, documents
from mlx_platform.traffic.readers.entry import Document, Entry, Reader
from mlx_platform.traffic.readers.fields import LogTimeError
from mlx_platform.traffic.readers.files import BrokenFileError, is_table, log_files
from mlx_platform.traffic.readers.seen import Seen
from mlx_platform.traffic.readers.signature import Signature
from mlx_platform.traffic.record import Record

OURS = "mlx"
_FILES_TRIED, _ROWS_TRIED = 5, 20
_HOUR = timedelta(hours=1)
_ORIGINS_COUNTED = 1000
_MARKS = {
    "captureData",
    "reqType",
    "type",
    "databricks_request_id",
    "invocation_id",
    "span_kind",
    "attributes",
} | {f"attributes.{openinference.KIND}"}
"""Columns of which a table has one when it is a log: others are not opened to find out."""


class _Format(NamedTuple):
    matches: Callable[[Document], bool]
    reader: "Callable[[Reading], Reader]"
    hour_of: Callable[[Path], datetime | None] = lambda _path: None


@dataclass(frozen=True, slots=True)
class Reading:
    """How a log is to be read.

    Attributes:
        format: one of `FORMATS`; None finds it out.
        zone: of times that name none; None refuses them.
        signature: of the model whose traffic it is.
    """

    format: str | None = None
    zone: tzinfo | None = None
    signature: Signature = field(default_factory=Signature)


_FOREIGN: dict[str, _Format] = {
    "sagemaker": _Format(
        sagemaker.matches, lambda how: sagemaker.SageMakerReader(how.zone), sagemaker.hour_of
    ),
    "kserve": _Format(kserve.matches, lambda how: kserve.KServeReader(how.zone)),
    "databricks": _Format(databricks.matches, lambda how: databricks.DatabricksReader(how.zone)),
    "openinference": _Format(
        openinference.matches,
        lambda how: openinference.OpenInferenceReader(how.zone, how.signature.columns),
    ),
    "triton": _Format(triton.matches, lambda _how: triton.TritonReader()),
}
FORMATS = (OURS, *_FOREIGN)


def check_format(name: str) -> None:
    """Refuse a name that is no format.

    Raises:
        UsageError: it is none.
    """
    if name not in FORMATS:
        raise UsageError(
            f"There is no reader for logs of the format {printable(name, 40)!r}.",
            hint=did_you_mean(name, FORMATS),
        )


def log_format(path: Path) -> str | None:
    """Whose log lies at a path; None when nothing there is known, as for a plain data file."""
    if has_segments(path):
        return OURS
    for file in log_files(path)[:_FILES_TRIED]:
        try:
            if is_table(file) and _MARKS.isdisjoint(columns_of_table(file)):
                continue
            found = [row for row in islice(documents(file), _ROWS_TRIED) if not isinstance(row, str)]
        except (BrokenFileError, OSError):
            continue
        for row in found:
            for name, form in _FOREIGN.items():
                if form.matches(row):
                    return name
    return None


def open_log(
    path: Path,
    reading: Reading | None = None,
    *,
    model: str | None = None,
    version: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> tuple[Iterator[Record], LogStats]:
    """Read a traffic log, ours or that of another platform.

    A log of ours is read as `traffic.log.read_log` does. Records of another's carry the name, version and
    digest of the signature, whatever model its log names: who answered is counted in the statistics.

    Args:
        path: the log's folder, or one of its files.
        reading: how; without it the format is found out and times need a zone.
        model: only this model's records of a log of ours.
        version: only this version's.
        since: the first moment.
        until: the moment after the last.

    Returns:
        The records, and statistics that fill while they are read.

    Raises:
        NotFoundError: there is nothing at the path.
        UsageError: no such format; while reading: times without a zone, or a span of time from a log
            that keeps none.
    """
    reading = reading or Reading()
    if not path.exists():
        raise NotFoundError(
            f"There is no traffic log at {path}.", hint="Write one with: mlx serve --traffic DIR"
        )
    if reading.format:
        check_format(reading.format)
    name = reading.format or log_format(path) or OURS
    if name == OURS:
        return read_log(path, model=model, version=version, since=since, until=until)
    stats = LogStats(format=name)
    selection, form = Selection(since=since, until=until), _FOREIGN[name]
    files = [file for file in log_files(path) if _may_hold(form.hour_of(file.resolve()), selection)]
    return _ForeignLog(form.reader(reading), reading.signature, selection, stats).read(files), stats


def _may_hold(hour: datetime | None, selection: Selection) -> bool:
    """Whether a file of this hour can hold wanted records; some come an hour late or early."""
    if hour is None:
        return True
    since, until = selection.since, selection.until
    return (since is None or hour + 2 * _HOUR > since) and (until is None or hour - _HOUR < until)


class _ForeignLog:
    """Reads files one after another and keeps the account."""

    def __init__(self, reader: Reader, signature: Signature, selection: Selection, stats: LogStats) -> None:
        self._reader = reader
        self._signature = signature
        self._selection = selection
        self._stats = stats
        self._seen = Seen()
        self._fallback = datetime(1970, 1, 1, tzinfo=UTC)
        self._whole_bytes = 0
        self._whole_rows = 0
        self._broken: list[tuple[int, int]] = []

    def read(self, files: list[Path]) -> Iterator[Record]:
        for path in files:
            self._stats.segments += 1
            rows = 0
            try:
                size, changed = path.stat().st_size, path.stat().st_mtime
                self._fallback = datetime.fromtimestamp(changed, UTC)
                for document in documents(path):
                    rows += 1
                    if isinstance(document, str):
                        self._lose(document)
                    else:
                        yield from self._records(document, str(path))
            except FileNotFoundError:
                continue  # deleted for its age after the folders were listed
            except (BrokenFileError, OSError):
                self._stats.quarantined += 1
                self._broken.append((path.stat().st_size if path.exists() else 0, rows))
            else:
                self._whole_bytes += size
                self._whole_rows += rows
        for entry in self._reader.finish():
            yield from self._record(entry)
        self._estimate()

    def _lose(self, loss: str) -> None:
        if loss == "torn":
            self._stats.torn += 1
        else:
            self._stats.unreadable += 1

    def _estimate(self) -> None:
        """What broken files held beyond the rows read of them, from the size of the others' rows."""
        for size, rows in self._broken:
            per_row = self._whole_bytes / self._whole_rows if self._whole_rows else max(1, size)
            self._stats.lost_rows += max(1, round(size / max(1.0, per_row)) - rows)

    def _records(self, document: Document, source: str) -> Iterator[Record]:
        try:
            for entry in self._reader.read(document, source):
                if entry is None:
                    self._stats.beside += 1
                else:
                    yield from self._record(entry)
        except LogTimeError:
            raise
        except (UsageError, RecursionError):
            self._stats.unreadable += 1

    def _record(self, entry: Entry) -> Iterator[Record]:
        try:
            record = self._decoded(entry)
        except (UsageError, RecursionError, MemoryError):
            self._stats.unreadable += 1
            return
        self._stats.readable += 1
        if not self._wanted(entry, record):
            return
        if entry.repeated or not self._seen.add(entry.key, entry.half):
            self._stats.duplicates += 1
            return
        self._stats.unpaired += entry.half != "both"
        if len(self._stats.origins) < _ORIGINS_COUNTED:
            self._stats.origins[entry.origin] += 1
        self._stats.records += 1
        yield record

    def _wanted(self, entry: Entry, record: Record) -> bool:
        if entry.time is None and (self._selection.since or self._selection.until):
            raise LogTimeError(
                f"This log ({self._stats.format}) keeps no time of day, so no span of it can be selected.",
                hint="Leave out --since and --until.",
            )
        return self._selection.wants(record)

    def _decoded(self, entry: Entry) -> Record:
        signature = self._signature
        request = response = None
        if not entry.truncated and entry.status == 200:
            request = decode_request(entry.request, signature) if entry.request else None
            response = decode_response(entry.response, signature) if entry.response else None
            if request and response and request.rows != response.rows:
                raise UsageError("A request and its answer differ in their number of rows.")
        digest = hashlib.blake2b(entry.key.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        return Record(
            request_id=entry.request_id,
            time=entry.time or self._fallback,
            seq=int.from_bytes(digest, "big") >> 1,
            server_id=entry.origin,
            boot_id="",
            model=signature.model or entry.origin,
            version=signature.version,
            digest=signature.digest,
            endpoint=_endpoint(request, response),
            status=entry.status,
            rows=next((side.rows for side in (request, response) if side), 0),
            inputs=request.arrays if request else {},
            outputs=response.arrays if response else {},
            timings_ms={} if entry.latency_ms is None else {"total": entry.latency_ms},
            sampling=entry.sampling,
            error=entry.error,
            truncated=entry.truncated,
        )


def _endpoint(request: Side | None, response: Side | None) -> str:
    """`infer` when the answers are the model's tensors: what they mean is then for its pipeline to say."""
    decisive = response or request
    return "infer" if decisive and decisive.tensors else "predict"
