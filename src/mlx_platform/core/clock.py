"""Times with a zone, and a clock that tests can replace."""

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from mlx_platform.core.errors import UsageError

Clock = Callable[[], datetime]

DURATION = "[0-9]+[smhd]"
"""The form of a span of time: `90s`, `30m`, `24h`, `7d`."""
_UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}

SPAN = r"([0-9]{1,9}(\.[0-9]{1,3})?(ms|s|m|h|d))+"
"""The form of a span of time that may have several parts, or be short: `1h30m`, `0.5s`, `200ms`."""


def system_clock() -> datetime:
    """The present moment in UTC."""
    return datetime.now(UTC)


def rfc3339(moment: datetime) -> str:
    """Print a moment in UTC, e.g. `2026-03-08T06:59:58.123Z`; whole seconds carry no fraction."""
    spec = "milliseconds" if moment.microsecond else "seconds"
    return moment.astimezone(UTC).isoformat(timespec=spec).replace("+00:00", "Z")


def both_zones(moment: datetime) -> str:
    """UTC and local time side by side, for people."""
    local = moment.astimezone()
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z ({local:%H:%M:%S %Z})"


def parse_duration(text: str) -> timedelta:
    """Read a span of time such as `90s`, `30m`, `24h`, `7d`.

    Raises:
        UsageError: the text is none, or longer than time itself is counted.
    """
    if not re.fullmatch(DURATION, text):
        raise UsageError(f"{text!r} is no span of time.", hint="Write 30m, 24h or 7d.")
    try:
        return timedelta(seconds=int(text[:-1]) * _UNITS[text[-1]])
    except (ValueError, OverflowError) as error:
        raise UsageError(f"{text[:20]!r} is a longer span than time itself is counted.") from error


def span_seconds(text: str) -> float:
    """Read a span of time of one part or several, such as `30s`, `1h30m` or `200ms`, as seconds.

    Raises:
        UsageError: the text is none.
    """
    if not re.fullmatch(SPAN, text):
        raise UsageError(f"{text[:40]!r} is no span of time.", hint="Write 30s, 2m or 1h30m.")
    units = {**_UNITS, "ms": 0.001}
    parts = re.findall(r"([0-9.]+)(ms|s|m|h|d)", text)
    return float(sum(float(number) * units[unit] for number, unit in parts))


def span_text(span: timedelta) -> str:
    """A span of time for people, in its two largest units: `1d 3h`, `12m`, `0s`; never negative."""
    rest, parts = max(0, int(span.total_seconds())), []
    for unit, seconds in _UNITS.items():
        count, rest = divmod(rest, seconds)
        if count:
            parts.append(f"{count}{unit}")
        elif parts:
            break
    return " ".join(parts[:2]) or "0s"


def parse_time(text: str, *, now: datetime) -> datetime:
    """Read an RFC 3339 time with zone, or an age such as `90s`, `30m`, `24h`, `7d` before `now`.

    Raises:
        UsageError: the text is neither, or the time has no zone.
    """
    if re.fullmatch(DURATION, text):
        try:
            return now.astimezone(UTC) - parse_duration(text)
        except OverflowError as error:
            raise UsageError(f"The age {text!r} reaches further back than time itself is counted.") from error
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(
            f"{text!r} is no time.", hint="Write 2026-03-08T06:59:58Z, or an age such as 24h or 7d."
        ) from error
    if moment.tzinfo is None:
        raise UsageError(f"The time {text!r} has no zone.", hint=f"Write {text}Z for UTC, or {text}+01:00.")
    try:
        return moment.astimezone(UTC)
    except OverflowError as error:
        raise UsageError(f"The time {text!r} lies outside of the calendar.") from error


class Stopwatch:
    """Seconds since it was made, on a clock that never jumps."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start
