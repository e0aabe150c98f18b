"""Fields of foreign documents, read without trusting their types."""

import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

from mlx_platform.core.errors import UsageError
from mlx_platform.core.text import printable

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST, _LAST = 1970, 2261


class LogTimeError(UsageError):
    """The log's times cannot be placed: they name no zone, or there are none. Concerns the log as a whole."""


def first(document: Mapping[str, Any], *names: str) -> Any:
    """The first of these fields that is there and not null."""
    for name in names:
        value = document.get(name)
        if value is not None:
            return value
    return None


def text_of(value: Any) -> str:
    """An identifier as text; empty for what is none."""
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else ""


def mapping_of(value: Any, what: str) -> Mapping[str, Any]:
    """A JSON object, or one that was written as text; nothing at all counts as an empty one.

    Raises:
        UsageError: it is something else.
    """
    from mlx_platform.traffic.readers.bodies import parse_json

    if value is None:
        return {}
    if isinstance(value, str | bytes):
        value = parse_json(value) if value else {}
    if isinstance(value, list) and all(isinstance(pair, tuple) and len(pair) == 2 for pair in value):
        value = dict(value)  # how a map of a Parquet file comes
    if not isinstance(value, Mapping):
        raise UsageError(f"{what} is a {type(value).__name__}, not an object.")
    return value


def number_of(value: Any) -> float | None:
    """A finite number, written as such or as text; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def status_of(value: Any) -> int:
    """An HTTP status; 200 where the log keeps none.

    Raises:
        UsageError: it is no status.
    """
    if value is None or value == "":
        return 200
    found = number_of(value)
    if found is None or not 100 <= found <= 599:
        raise UsageError("A status is no number from 100 to 599.")
    return int(found)


def moment_of(value: Any, zone: tzinfo | None, *, ticks: int = 1000) -> datetime:
    """A time in UTC.

    Args:
        value: ISO 8601 text, a datetime, or a number of ticks since 1970 in UTC.
        zone: of times that name none.
        ticks: how many make a second.

    Raises:
        LogTimeError: a time without zone, and none to assume.
        UsageError: it is no time, or lies outside of the years that a record can have.
    """
    try:
        moment = _moment(value, ticks)
        if moment.tzinfo is None:
            if zone is None:
                raise LogTimeError(
                    f"The log's times name no zone, such as {printable(str(value), 40)}.",
                    hint="Say which one they are in: --assume-tz UTC, or --assume-tz Europe/Berlin.",
                )
            moment = moment.replace(tzinfo=zone)
        moment = moment.astimezone(UTC)
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError("A time cannot be read.") from error
    if not _FIRST <= moment.year <= _LAST:
        raise UsageError("A time lies outside of 1970 to 2261.")
    return moment


def _moment(value: Any, ticks: int) -> datetime:
    if isinstance(value, datetime):
        return value
    if isinstance(value, str) and not value.strip().isdigit():
        return datetime.fromisoformat(_microseconds(value.strip()))
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError
    if isinstance(value, float):
        return _EPOCH + timedelta(seconds=value / ticks)
    return _EPOCH + timedelta(microseconds=int(value) * 1_000_000 // ticks)


def _microseconds(text: str) -> str:
    """A time with more digits of a second than Python reads, cut; and a space before the zone taken out."""
    head, dot, rest = text.partition(".")
    if not dot:
        return text
    digits = len(rest) - len(rest.lstrip("0123456789"))
    return f"{head}.{rest[: min(digits, 6)]}{rest[digits:].strip()}"
