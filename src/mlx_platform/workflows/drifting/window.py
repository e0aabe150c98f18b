"""The traffic of a window, counted on the baseline's bins."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from mlx_platform.core.clock import rfc3339
from mlx_platform.core.errors import UndecidedError, UsageError
from mlx_platform.core.progress import Advance
from mlx_platform.core.span import Span
from mlx_platform.core.text import listed, printable
from mlx_platform.drift.counts import Counts, count, count_chunks
from mlx_platform.drift.feature import Role
from mlx_platform.drift.profile import Profile
from mlx_platform.drift.values import Categories
from mlx_platform.traffic.log import LogStats
from mlx_platform.traffic.readers.opening import Reading, log_format, open_log
from mlx_platform.traffic.record import Record
from mlx_platform.traffic.rows import row_batches
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.drifting.baseline import left_out
from mlx_platform.workflows.drifting.parquet import chunks, is_plain, open_table
from mlx_platform.workflows.drifting.watched import Watched
from mlx_platform.workflows.subject import Subject


@dataclass(slots=True)
class Left:
    """Records of the window that are not rows to compare, by reason."""

    failed: int = 0
    other_digest: int = 0
    truncated: int = 0


@dataclass(slots=True)
class Window:
    """What was counted, and what was not."""

    source: str
    span: Span
    counts: Counts
    stats: LogStats
    roles: tuple[Role, ...] = ("input", "output")
    left: Left = field(default_factory=Left)
    first: datetime | None = None
    last: datetime | None = None
    samplings: set[float] = field(default_factory=set)
    versions: set[str] = field(default_factory=set)

    def document(self) -> dict[str, Any]:
        return {
            "source": self.source,
            **self.span.document(),
            "first": rfc3339(self.first) if self.first else None,
            "last": rfc3339(self.last) if self.last else None,
            "rows": self.counts.rows,
            **self.stats.document(),
            "failed": self.left.failed,
            "truncated": self.left.truncated,
            "other_digest": self.left.other_digest,
        }

    def warnings(self) -> list[str]:
        found = []
        if self.stats.share_usable < 1:
            found.append(
                f"Only {self.stats.share_usable:.2%} of the log's records in question are readable: "
                f"{self.stats.torn} torn, {self.stats.unreadable} damaged, "
                f"{self.stats.quarantined} files quarantined."
            )
        if self.stats.unpaired:
            found.append(
                f"{self.stats.unpaired:,} records hold a request without its answer, or the reverse; "
                "the side that is there counts."
            )
        if len(self.stats.origins) > 1:
            named = listed([name or "(none)" for name in sorted(self.stats.origins)], 5)
            found.append(f"The log names several servers or models, which all count as one: {named}.")
        if self.left.truncated:
            found.append(f"{self.left.truncated:,} records were logged without their inputs, for their size.")
        if self.left.other_digest:
            found.append(
                f"{self.left.other_digest:,} records were answered by another package, and left out."
            )
        if len(self.samplings) > 1:
            found.append("The log's sampling changed within the window; every record counts the same.")
        return found


def count_window(
    context: Context,
    subject: Subject | None,
    profile: Profile,
    watched: Watched,
    traffic: Path,
    span: Span,
    reading: Reading,
) -> Window:
    """Count a traffic log, ours or another platform's, or the rows of a plain data file.

    Raises:
        NotFoundError: there is nothing at the path.
        UsageError: the log holds traffic of several versions and none was named, or a plain file was to be
            cut by time.
    """
    if reading.format is None and log_format(traffic) is None:
        try:
            return _count_file(context, profile, watched, traffic, span)
        except UndecidedError:
            if not traffic.is_dir():
                raise
            # A log that nobody has written to yet: an empty window.
    return _count_log(context, subject, profile, watched, traffic, span, reading)


def _count_file(context: Context, profile: Profile, watched: Watched, path: Path, span: Span) -> Window:
    if (span.since or span.until) and path.is_file():
        raise UsageError(f"{path} is a plain data file, whose rows have no time to select by.")
    with context.progress.stage(f"counting {path.name}"):
        counts = _count_table(context, profile, watched, path)
    return Window(str(path), span, counts, LogStats(format="rows"), roles=("input",))


def _count_table(context: Context, profile: Profile, watched: Watched, path: Path) -> Counts:
    aside = left_out(context, watched.package)
    if is_plain(path):
        with open_table(path) as table:
            if not watched.needs_cells(table.schema_arrow.names):
                found = (
                    {name: column} if isinstance(column, Categories) else watched.inputs({name: column})
                    for name, column in chunks(table, aside)
                )
                return count_chunks(profile, table.metadata.num_rows, found)
    from mlx_platform.inference.dataset import read_dataset

    return count(profile, watched.inputs(read_dataset(path).features(drop=aside)))


def _count_log(
    context: Context,
    subject: Subject | None,
    profile: Profile,
    watched: Watched,
    folder: Path,
    span: Span,
    reading: Reading,
) -> Window:
    records, stats = open_log(
        folder,
        reading,
        model=subject.name if subject else None,
        version=subject.number if subject else None,
        since=span.since,
        until=span.until,
    )
    window = Window(str(folder), span, Counts.nothing(profile), stats)
    digest = subject.package.digest if subject else None
    with context.progress.stage("reading traffic") as advance:
        for batch in row_batches(_usable(records, window, digest, advance), stats):
            inputs = watched.inputs(batch.inputs)
            window.counts += count(profile, inputs, watched.outputs(batch.endpoint, batch.outputs))
    return window


def _usable(
    records: Iterator[Record], window: Window, digest: str | None, advance: Advance
) -> Iterator[Record]:
    for record in records:
        advance(1)
        if digest is not None and record.digest != digest:
            window.left.other_digest += 1
            continue
        if record.status != 200:
            window.left.failed += 1
            continue
        if record.truncated:
            window.left.truncated += 1
            continue
        if digest is None and not record.foreign:
            window.versions.add(f"{record.model}/{record.version}")
            _check_versions(window.versions)
        window.samplings.add(record.sampling)
        window.first = min(window.first or record.time, record.time)
        window.last = max(window.last or record.time, record.time)
        yield record


def _check_versions(versions: set[str]) -> None:
    if len(versions) > 1:
        shown = ", ".join(printable(name, 80) for name in sorted(versions))
        raise UsageError(
            f"The log holds traffic of several versions: {shown}.",
            hint="Name one: mlx drift NAME/VERSION ...",
        )
