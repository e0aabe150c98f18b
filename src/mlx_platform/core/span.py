"""Spans of time: half-open, in UTC, cut on the calendar of any zone."""

from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from mlx_platform.core.clock import parse_duration, parse_time, rfc3339
from mlx_platform.core.errors import UsageError
from mlx_platform.core.text import printable
from mlx_platform.core.values import frozen

_HOUR = timedelta(hours=1)
_MINUTE = timedelta(minutes=1)
_DAY = timedelta(days=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@frozen
class Span:
    """`[since, until)`; None is open."""

    since: datetime | None
    until: datetime | None

    def document(self) -> dict[str, str | None]:
        return {
            "since": rfc3339(self.since) if self.since else None,
            "until": rfc3339(self.until) if self.until else None,
        }


ALWAYS = Span(None, None)


def time_span(since: str | None, until: str | None, *, now: datetime) -> Span:
    """Read the ends of a span, each RFC 3339 or an age such as `24h`.

    Raises:
        UsageError: an end that is no time, or a span that holds none.
    """
    span = Span(
        parse_time(since, now=now) if since else None,
        parse_time(until, now=now) if until else None,
    )
    if span.since and span.until and span.since >= span.until:
        raise UsageError(f"The window is empty: it starts at {since} and ends at {until}.")
    return span


def time_zone(name: str) -> ZoneInfo:
    """A zone by its name, such as `Europe/Berlin`.

    Raises:
        UsageError: there is none of that name.
    """
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, LookupError) as error:
        raise UsageError(
            f"There is no time zone {printable(name, 60)!r}.",
            hint="Write UTC, or a name such as Europe/Berlin.",
        ) from error


def midnight(day: date, zone: ZoneInfo) -> datetime:
    """The moment at which a day begins in a zone, in UTC."""
    return datetime.combine(day, time(), zone).astimezone(UTC)


def recent(last: str, zone: ZoneInfo, *, now: datetime, back: int = 0) -> Span:
    """The newest span of a length that is over, or one that lies `back` lengths before it.

    Days are whole days of the zone, of 23 or 25 hours where clocks change. Hours end with the last whole
    hour, so that a job that starts some minutes late looks at the same span; minutes and seconds with the
    last whole minute.

    Args:
        last: the length, such as `24h` or `1d`.
        zone: whose days are meant.
        now: the present moment.
        back: how many lengths earlier.

    Raises:
        UsageError: no length, or none at all.
    """
    length = parse_duration(last)
    if not length:
        raise UsageError(f"A window of {last} holds no time.", hint="Write 24h, or 1d for a whole day.")
    try:
        if last.endswith("d"):
            today = now.astimezone(zone).date() - back * length
            return Span(midnight(today - length, zone), midnight(today, zone))
        step = _MINUTE if length % _HOUR else _HOUR
        end = now.astimezone(UTC) - (now.astimezone(UTC) - _EPOCH) % step
        return Span(end - (back + 1) * length, end - back * length)
    except OverflowError as error:
        raise UsageError(f"{last} reaches further back than time itself is counted.") from error


@frozen
class Grid:
    """Time cut into windows of one length, half-open and without gaps, on the calendar of a zone.

    Windows up to an hour are cut in UTC. Longer ones begin at the same times of every day, and whole days at
    midnight of the zone (weeks on Mondays), so that they have an hour less or more where clocks change.
    """

    length: timedelta
    zone: ZoneInfo

    def at(self, moment: datetime) -> Span:
        """The window that a moment lies in."""
        if self.length <= _HOUR:
            start = moment.astimezone(UTC) - (moment - _EPOCH) % self.length
            return Span(start, start + self.length)
        local = moment.astimezone(self.zone)
        if self.length.days:
            days = self.length.days
            first = date.fromordinal((local.toordinal() - 1) // days * days + 1)
            return Span(midnight(first, self.zone), midnight(first + self.length, self.zone))
        begin = datetime.combine(local.date(), time())
        begin += (local.replace(tzinfo=None, fold=0) - begin) // self.length * self.length
        return Span(
            *(each.replace(tzinfo=self.zone).astimezone(UTC) for each in (begin, begin + self.length))
        )

    def document(self) -> dict[str, str]:
        return {"every": f"{self.length // timedelta(seconds=1)}s", "zone": self.zone.key}


def make_grid(every: str, zone: ZoneInfo) -> Grid:
    """Windows of a length such as `1h` or `1d`.

    Raises:
        UsageError: no length, or one that does not fill a day, or days, exactly.
    """
    length = parse_duration(every)
    if not length or (length % _DAY if length > _DAY else _DAY % length):
        raise UsageError(
            f"Windows of {every} do not fill a day exactly.", hint="Write 15m, 1h, 6h, 1d or 7d, for example."
        )
    return Grid(length, zone)
