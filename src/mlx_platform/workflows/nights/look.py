"""One window looked at: every version that answered under the reference in it, replayed and watched."""

import resource
import sys
from pathlib import Path
from typing import Any

from mlx_platform.core.clock import Stopwatch, rfc3339
from mlx_platform.core.errors import MlxError
from mlx_platform.core.report import Result
from mlx_platform.core.span import Span
from mlx_platform.core.values import frozen
from mlx_platform.core.verdict import Check, Verdict
from mlx_platform.registry.journal import Journal
from mlx_platform.registry.ref import PathRef, parse_ref
from mlx_platform.workflows.consistency import check_consistency
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.holders import versions_in
from mlx_platform.workflows.nights.deploys import Deploy, deploys_of
from mlx_platform.workflows.nights.watch import Watch
from mlx_platform.workflows.nights.window import Night


@frozen
class Request:
    """What a nightly run was asked for, the same for each of its windows."""

    ref: str
    traffic: Path
    slices: tuple[str, ...] = ()
    sample: int | None = None
    log_format: str | None = None
    assume_tz: str | None = None
    show_values: bool = False


@frozen
class Look:
    """What was found out about one version in a window."""

    ref: str
    result: Result
    watch: Watch


@frozen
class Seen:
    """A window: `looks` has an entry per version, the one that came last is last.

    `failed` are versions that could not be asked any more; `figures` are seconds and peak memory of the run.
    """

    night: Night
    looks: tuple[Look, ...]
    failed: tuple[Check, ...]
    deploys: tuple[Deploy, ...]
    figures: dict[str, Any]

    @property
    def main(self) -> Look:
        """The last version that answered something; the last of all when none did."""
        answered = (look for look in reversed(self.looks) if look.result.data["requests"]["compared"])
        return next(answered, self.looks[-1])

    @property
    def others(self) -> tuple[Look, ...]:
        return tuple(look for look in self.looks if look is not self.main)


def look_at(context: Context, asked: Request, night: Night) -> Seen:
    """Replay a window.

    An alias may have moved within it: each version that held it is asked for the requests that it answered.
    One that held it earlier and is gone, or damaged, counts as an error; the last one must be there.

    Raises:
        MlxError: as `check_consistency` raises them.
    """
    watch = Stopwatch()
    refs = versions_in(context, asked.ref, Span(night.since, night.until))
    looks, failed = [], []
    for place, ref in enumerate(refs):
        try:
            looks.append(_look(context, asked, night, ref))
        except MlxError as error:
            if place == len(refs) - 1:
                raise
            failed.append(
                Check("agreement", Verdict.ERROR, "", "answers of this version", error.message, part=ref)
            )
    restarts = [restart for look in looks for restart in look.watch.restarts]
    deploys = deploys_of(_journal(context, asked.ref), restarts, night, now=context.clock())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    figures = {"seconds": watch.seconds, "peak_rss_bytes": peak}
    return Seen(night, tuple(looks), tuple(failed), tuple(deploys), figures)


def _look(context: Context, asked: Request, night: Night, ref: str) -> Look:
    watch = Watch(night.zone, asked.slices)
    result = check_consistency(
        context,
        ref,
        traffic=asked.traffic,
        since=rfc3339(night.since),
        until=rfc3339(night.until),
        sample=asked.sample,
        observer=watch,
        log_format=asked.log_format,
        assume_tz=asked.assume_tz,
    )
    return Look(str(result.data["model"]["ref"]), result, watch)


def _journal(context: Context, ref: str) -> Journal | None:
    parsed = parse_ref(ref)
    if isinstance(parsed, PathRef):
        return None
    return context.catalog.journal(context.catalog.resolve(parsed).name)
