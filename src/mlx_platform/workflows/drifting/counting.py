"""A traffic log, a data file or kept counts, counted on the bins of a baseline."""

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np

from mlx_platform.core.errors import NotFoundError, UndecidedError, UsageError
from mlx_platform.core.progress import Advance
from mlx_platform.core.span import ALWAYS
from mlx_platform.core.text import did_you_mean, printable
from mlx_platform.drift.counts import Counts, count, count_chunks, count_features, features_of
from mlx_platform.drift.profile import Profile
from mlx_platform.drift.shard import Place
from mlx_platform.drift.strata import Strata, share_of
from mlx_platform.drift.values import Column
from mlx_platform.drift.watched import Watched, served
from mlx_platform.traffic.log import LogStats
from mlx_platform.traffic.readers.opening import OURS, Reading, log_format, open_log
from mlx_platform.traffic.record import Record
from mlx_platform.traffic.rows import RowBatch, row_batches
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.drifting.parquet import chunks, is_plain, open_table
from mlx_platform.workflows.drifting.window import Cut, Window, check_windows
from mlx_platform.workflows.inputs import left_out
from mlx_platform.workflows.subject import Subject

BATCH_ROWS = 65_536
_AHEAD = timedelta(hours=1)
"""How far a clock may be ahead of ours before its records are not believed."""

Take = Callable[[Record], bool]


def count_window(
    context: Context,
    subject: Subject | None,
    profile: Profile,
    watched: Watched,
    traffic: Path,
    cut: Cut,
    reading: Reading,
    *,
    take: Take | None = None,
) -> Window:
    """Count a traffic log, ours or another platform's, or the rows of a plain data file.

    Args:
        context: the command's context.
        subject: the version whose traffic is meant.
        profile: on whose bins.
        watched: what the profile's features are in the traffic.
        traffic: the log or file.
        cut: which part of it, and into what.
        reading: how the log is read.
        take: says of each record that would count whether it does.

    Raises:
        NotFoundError: there is nothing at the path.
        UsageError: the log holds traffic of several versions and none was named, or a plain file was to be
            cut by time.
    """
    if is_file_of_rows(traffic, reading):
        try:
            return _count_file(context, profile, watched, traffic, cut)
        except UndecidedError:
            if not traffic.is_dir():
                raise
            # A log that nobody has written to yet: an empty window.
    return _count_log(context, subject, profile, watched, traffic, cut, reading, take)


def is_file_of_rows(traffic: Path, reading: Reading) -> bool:
    """Whether a path holds plain rows, as far as can be told from its files, and no log."""
    return reading.format is None and log_format(traffic) is None


def _count_file(context: Context, profile: Profile, watched: Watched, path: Path, cut: Cut) -> Window:
    if cut.needs_log and path.is_file():
        raise UsageError(f"{path} is a plain data file, whose rows have no time, arm or server to select by.")
    with context.progress.stage(f"counting {path.name}"):
        counts = _count_table(context, profile, watched, path)
    parts = {Place(): Strata.of(counts)}
    return Window(str(path), cut, profile, parts, LogStats(format="rows"), roles=("input",))


def _count_table(context: Context, profile: Profile, watched: Watched, path: Path) -> Counts:
    aside = left_out(context, watched.package)
    if is_plain(path):
        with open_table(path) as table:
            if not watched.needs_cells(table.schema_arrow.names):
                found: Iterator[Mapping[str, Column]] = (
                    watched.inputs({name: column}) if isinstance(column, np.ndarray) else {name: column}
                    for name, column in chunks(table, aside)
                )
                return count_chunks(profile, table.metadata.num_rows, found)
    from mlx_platform.inference.sources.opening import open_dataset

    source = open_dataset(path)
    names = [name for name in source.columns if name not in aside]
    counts = Counts.nothing(profile)
    for batch in source.batches(BATCH_ROWS, names):
        counts += count(profile, watched.inputs(batch))
    return counts


def _count_log(
    context: Context,
    subject: Subject | None,
    profile: Profile,
    watched: Watched,
    folder: Path,
    cut: Cut,
    reading: Reading,
    take: Take | None,
) -> Window:
    window = Window(str(folder), cut, profile, {}, LogStats())
    for batch in log_batches(context, subject, folder, window, reading, take):
        place, share = batch.apart
        features = features_of(watched.inputs(batch.inputs), watched.outputs(batch.endpoint, batch.outputs))
        counts = count_features(profile, features | served(batch.latency_ms, batch.request_rows))
        part = Strata.of(counts, share)
        window.parts[place] = window.parts[place] + part if place in window.parts else part
        if cut.grid:
            check_windows(len({each.span for each in window.parts}), cut.grid)
    return window


def log_batches(
    context: Context,
    subject: Subject | None,
    folder: Path,
    window: Window,
    reading: Reading,
    take: Take | None = None,
) -> Iterator[RowBatch]:
    """The rows of a log that are meant, each batch of one part of the window, with its share (`apart`).

    Args:
        context: the command's context.
        subject: the version whose traffic is meant.
        folder: the log.
        window: says what is meant, and keeps the account of what is read and left out.
        reading: how the log is read.
        take: says of each record that would count whether it does.

    Raises:
        UsageError: the log holds traffic of several versions and none was named, or it names no entities.
        NotFoundError: there is nothing at the path, or the entity answered nothing.
    """
    cut = window.cut
    records, stats = open_log(
        folder,
        reading,
        model=subject.name if subject else None,
        version=subject.number if subject and cut.by != "version" else None,
        since=cut.span.since,
        until=cut.span.until,
    )
    window.stats = stats
    if cut.entity is not None and stats.format == OURS:
        raise UsageError(
            f"{folder} is a log of mlx serve, which names no entities.",
            hint="Name the version, or an arm with --arm.",
        )
    usable = _Usable(window, subject, context.clock() + _AHEAD, take)
    with context.progress.stage("reading traffic") as advance:
        yield from row_batches(usable.read(records, advance), stats, apart=usable.place)
    if cut.entity is not None and cut.entity not in stats.origins:
        raise _no_entity(folder, cut.entity, stats)


class _Usable:
    """Chooses the records that count, and says where each belongs."""

    def __init__(self, window: Window, subject: Subject | None, latest: datetime, take: Take | None) -> None:
        self._window = window
        self._cut = window.cut
        several = window.cut.by == "version"
        self._digest = subject.package.digest if subject and not several else None
        self._one_version = subject is None and not several
        self._latest = latest
        self._take = take
        self._versions: set[str] = set()
        self._span = ALWAYS

    def read(self, records: Iterator[Record], advance: Advance) -> Iterator[Record]:
        window = self._window
        for record in records:
            advance(1)
            if not self._counts(record) or (self._take and not self._take(record)):
                continue
            if self._one_version and not record.foreign:
                self._versions.add(f"{record.model}/{record.version}")
                _check_versions(self._versions)
            window.first = min(window.first or record.time, record.time)
            window.last = max(window.last or record.time, record.time)
            yield record

    def place(self, record: Record) -> tuple[Place, float]:
        """The part of the window that a record belongs to, and the share of requests it stands for."""
        grid = self._cut.grid
        span = self._span
        if grid and (span.since is None or not span.since <= record.time < (span.until or record.time)):
            span = self._span = grid.at(record.time)
        return Place(span, record.arm, record.version), share_of(record.sampling)

    def _counts(self, record: Record) -> bool:
        left, cut = self._window.left, self._cut
        if self._digest is not None and record.digest != self._digest:
            left.other_digest += 1
        elif cut.arm is not None and record.arm != cut.arm:
            left.other_arm += 1
        elif cut.entity is not None and record.server_id != cut.entity:
            left.other_entity += 1
        elif record.status != 200:
            left.failed += 1
        elif record.truncated:
            left.truncated += 1
        elif record.time > self._latest:
            left.future += 1
        elif not 0 < record.sampling <= 1:
            self._window.stats.unreadable += 1
        else:
            return True
        return False


def _check_versions(versions: set[str]) -> None:
    if len(versions) > 1:
        shown = ", ".join(printable(name, 80) for name in sorted(versions))
        raise UsageError(
            f"The log holds traffic of several versions: {shown}.",
            hint="Name one: mlx drift NAME/VERSION ...; or look at each: --by version.",
        )


def _no_entity(folder: Path, name: str, stats: LogStats) -> NotFoundError:
    return NotFoundError(
        f"Nobody called {printable(name, 60)!r} answered in this window of {folder}.",
        hint=did_you_mean(name, sorted(stats.origins)),
    )
