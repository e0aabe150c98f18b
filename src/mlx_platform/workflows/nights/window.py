"""The windows that a nightly run looks at: the newest one, and those before it that nobody looked at."""

from collections.abc import Collection
from datetime import datetime
from zoneinfo import ZoneInfo

from mlx_platform.core.span import recent
from mlx_platform.core.values import frozen


@frozen
class Night:
    """A window `[since, until)` with the name that its report goes by; `zone` is the one it was cut in."""

    since: datetime
    until: datetime
    zone: ZoneInfo
    whole_days: bool

    @property
    def key(self) -> str:
        """`2026-03-08` for whole days of a zone, else `2026-03-08T0200Z`: names of folders, in order."""
        return (
            f"{self.since.astimezone(self.zone):%Y-%m-%d}"
            if self.whole_days
            else f"{self.since:%Y-%m-%dT%H%MZ}"
        )


def night_before(last: str, zone: ZoneInfo, *, now: datetime, back: int = 0) -> Night:
    """The newest window of a length such as `24h` or `1d`, or one that lies `back` lengths before it.

    Raises:
        UsageError: no length.
    """
    span = recent(last, zone, now=now, back=back)
    if span.since is None or span.until is None:
        raise ValueError("a recent span has two ends")
    return Night(span.since, span.until, zone, last.endswith("d"))


def missed_nights(
    last: str, zone: ZoneInfo, most: int, kept: Collection[datetime], *, now: datetime
) -> list[Night]:
    """The windows before the newest one that should have a report and have none, oldest first.

    A window is missed when an older one was looked at and none that ended about when it did: on the first
    run nothing is, and a job that runs at another hour than usual repeats no night.

    Args:
        last: the length of a window.
        zone: whose days are meant.
        most: how many windows to look back.
        kept: the ends of the windows that have a report.
        now: the present moment.
    """
    found = []
    for back in range(most, 0, -1):
        night = night_before(last, zone, now=now, back=back)
        half = (night.until - night.since) / 2
        began = any(end <= night.since + half for end in kept)
        if began and not any(abs(end - night.until) < half for end in kept):
            found.append(night)
    return found
