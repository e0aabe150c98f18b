"""`mlx profile`: baselines and counts of traffic as files of their own."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from mlx_platform.core.errors import UsageError
from mlx_platform.core.files import file_lock, write_atomic
from mlx_platform.core.report import Fact, Report, Result, Table
from mlx_platform.core.span import time_span
from mlx_platform.core.text import plural
from mlx_platform.drift.account import Account, count_file
from mlx_platform.drift.profile import Profile
from mlx_platform.drift.shard import Shard, merge
from mlx_platform.drift.watched import watched
from mlx_platform.traffic.readers.files import log_files
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.drifting.baseline import Sources, build_baseline, find_baseline, told
from mlx_platform.workflows.drifting.counting import count_window, is_file_of_rows
from mlx_platform.workflows.drifting.kept import read_shard
from mlx_platform.workflows.drifting.taking import Taking
from mlx_platform.workflows.drifting.window import Window, make_cut
from mlx_platform.workflows.reading import make_reading
from mlx_platform.workflows.subject import open_subject

_LISTED = 24
_PATIENCE = 600  # seconds that a job waits for another one that adds to the same file


def build(
    context: Context,
    source: Path,
    ref: str | None = None,
    *,
    out: Path,
    since: str | None = None,
    until: str | None = None,
    assume_tz: str | None = None,
) -> Result:
    """Profile rows or a log, and keep the profile as a file.

    Args:
        context: the command's context.
        source: Parquet, CSV, JSONL or an image folder of any size, or a traffic log.
        ref: the version that answers the rows, or whose traffic is meant; None profiles columns as they are.
        out: the file to write.
        since: the first moment of a log.
        until: the moment after its last.
        assume_tz: the zone of times in the log that name none.

    Raises:
        UsageError: the source cannot be read, or a span of a file without times.
        UndecidedError: it holds no rows.
    """
    sources = Sources(source, span=time_span(since, until, now=context.clock()), assume_tz=assume_tz)
    with ExitStack() as stack:
        subject = stack.enter_context(open_subject(context, ref)) if ref is not None else None
        built, where, warnings = build_baseline(context, subject, source, sources)
    write_atomic(out, built.profile.to_json())
    profile = built.profile
    return Result(
        command="profile build",
        data={
            "baseline_id": profile.baseline_id,
            "rows": profile.rows,
            "path": str(out),
            "features": [
                {"name": each.name, "role": each.role, "kind": each.kind, "dtype": each.dtype}
                for each in profile.features
            ],
            "thinned": list(built.thinned),
            "tails": dict(built.tails),
        },
        report=Report(
            title="profile build",
            summary=f"Profiled {plural(profile.rows, 'row')} of {plural(len(profile.features), 'feature')}.",
            facts=(Fact("baseline", profile.baseline_id), Fact("source", where), Fact("file", str(out))),
            sections=(_features(profile),),
            next_steps=(f"mlx drift --baseline {out} --traffic DIR",),
        ),
        warnings=(*warnings, *told(built)),
    )


def count(
    context: Context,
    ref: str | None = None,
    *,
    traffic: Path,
    out: Path,
    baseline: Path | None = None,
    since: str | None = None,
    until: str | None = None,
    every: str | None = None,
    zone: str | None = None,
    log_format: str | None = None,
    assume_tz: str | None = None,
    add: bool = False,
) -> Result:
    """Count traffic on the bins of a baseline, and keep the counts as a file.

    Args:
        context: the command's context.
        ref: the version whose traffic and baseline are meant.
        traffic: a log or a data file.
        out: the file to write.
        baseline: see `measure_drift`.
        since: the first moment.
        until: the moment after the last.
        every: keep the counts of windows of this length.
        zone: on whose calendar these are cut.
        log_format: of the log; None finds it out.
        assume_tz: the zone of times in the log that name none.
        add: to the counts that the file holds already; what they hold is passed over.

    Raises:
        UsageError: a flag that cannot be used, or counts of another baseline in the file.
        ConflictError: some of the files have been counted already and some have not.
    """
    now = context.clock()
    cut = make_cut(time_span(since, until, now=now), every=every, zone=zone)
    with ExitStack() as stack:
        if add:
            lock = out.with_name(f".{out.name}.lock")
            stack.enter_context(file_lock(lock, timeout=_PATIENCE, purpose=f"adding to {out.name}"))
        before = read_shard(out) if add and out.exists() else None
        subject = stack.enter_context(open_subject(context, ref)) if ref is not None else None
        against = find_baseline(context, subject, Sources(baseline, assume_tz=assume_tz))
        profile = against.profile
        before = before or Shard(profile.baseline_id)
        names = tuple(feature.name for feature in profile.of_role("input"))
        reading = make_reading(subject, names, log_format=log_format, assume_tz=assume_tz)
        taking = Taking(before.account)
        look = watched(subject.package if subject else None, profile)
        window = count_window(context, subject, profile, look, traffic, cut, reading, take=taking)
        files = window.stats.format != "mlx" or is_file_of_rows(traffic, reading)
        fresh = _shard(window, taking, traffic if files else None)
        whole, repeated = merge([(str(out), before), (str(traffic), fresh)]) if before.parts else (fresh, ())
        write_atomic(out, whole.to_json())
    warnings = (*against.warnings, *window.warnings())
    return _counted(whole, out, warnings, taking.repeated, repeated, command="profile count")


def merge_files(context: Context, paths: Sequence[Path], *, out: Path) -> Result:
    """Add up counts that were kept, in any order.

    Args:
        context: the command's context.
        paths: files of counts on the same baseline, at least one.
        out: the file to write; it may be one of them.

    Raises:
        UsageError: a file holds no counts, or those of another baseline.
        ConflictError: some of what one holds has been counted and some has not.
    """
    if not paths:
        raise UsageError("There is nothing to merge.", hint="Name files that `mlx profile count` wrote.")
    with context.progress.stage("merging"):
        # Those that hold the most first: what is a part of another one is then passed over.
        shards = sorted(((str(path), read_shard(path)) for path in paths), key=lambda each: -each[1].rows)
        whole, repeated = merge(shards)
    write_atomic(out, whole.to_json())
    return _counted(whole, out, (), 0, repeated, command="profile merge")


def _shard(window: Window, taking: Taking, files: Path | None) -> Shard:
    account = taking.account()
    if files is not None:
        counted = [files] if files.is_file() else log_files(files)
        account = account + Account(files=tuple(count_file(path, window.span) for path in counted))
    return Shard(
        baseline_id=window.profile.baseline_id,
        parts=window.parts,
        account=account,
        roles=window.roles,
        first=window.first,
        last=window.last,
    )


def _counted(
    shard: Shard,
    out: Path,
    warnings: tuple[str, ...],
    skipped: int,
    repeated: tuple[str, ...],
    *,
    command: str,
) -> Result:
    rows, places = shard.rows, sorted(shard.parts.items(), key=lambda entry: str(entry[0]))
    told = [f"{skipped:,} records had been counted already, and were passed over."] if skipped else []
    told += [f"{name} has been counted already, and was passed over." for name in repeated]
    documents = [{**place.document(), "rows": part.rows} for place, part in places]
    lines = tuple(
        (
            *(end.isoformat() if end else "" for end in (place.span.since, place.span.until)),
            place.arm,
            place.version,
            f"{part.rows:,}",
        )
        for place, part in places[-_LISTED:]
    )
    return Result(
        command=command,
        data={
            "baseline_id": shard.baseline_id,
            "rows": rows,
            "path": str(out),
            "parts": documents,
            "skipped": skipped,
            "repeated": list(repeated),
        },
        report=Report(
            title=command,
            summary=f"The file holds the counts of {plural(rows, 'row')} in {plural(len(places), 'part')}.",
            facts=(Fact("baseline", shard.baseline_id), Fact("file", str(out))),
            sections=(Table("Parts", ("from", "until", "arm", "version", "rows"), lines, numeric=(4,)),),
            next_steps=(f"mlx drift REF --traffic {out}",),
        ),
        warnings=(*warnings, *told),
    )


def _features(profile: Profile) -> Table:
    rows = tuple(
        (
            each.name,
            each.role,
            each.kind,
            str(each.bin_count),
            f"{each.tally.present:,}",
            f"{each.tally.missing_rows:,}",
        )
        for each in profile.features
    )
    return Table(
        "Features", ("feature", "role", "kind", "bins", "values", "missing"), rows, numeric=(3, 4, 5)
    )
