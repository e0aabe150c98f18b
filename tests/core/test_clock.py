from datetime import UTC, datetime, timedelta, timezone

import pytest

from mlx_platform.core.clock import both_zones, parse_duration, parse_time, rfc3339, span_seconds, span_text
from mlx_platform.core.errors import UsageError

NOW = datetime(2026, 3, 8, 12, 0, tzinfo=UTC)


def test_a_time_is_printed_in_utc_whatever_its_zone() -> None:
    moment = datetime(2026, 3, 8, 1, 59, 58, 123456, tzinfo=timezone(timedelta(hours=-5)))

    assert rfc3339(moment) == "2026-03-08T06:59:58.123Z"
    assert rfc3339(NOW) == "2026-03-08T12:00:00Z"


def test_people_see_utc_and_local_time_side_by_side() -> None:
    assert both_zones(NOW).startswith("2026-03-08 12:00:00Z (")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90s", NOW - timedelta(seconds=90)),
        ("30m", NOW - timedelta(minutes=30)),
        ("24h", NOW - timedelta(hours=24)),
        ("7d", NOW - timedelta(days=7)),
        ("2026-03-08T06:59:58Z", datetime(2026, 3, 8, 6, 59, 58, tzinfo=UTC)),
        ("2026-03-08T06:59:58+01:00", datetime(2026, 3, 8, 5, 59, 58, tzinfo=UTC)),
    ],
)
def test_ages_and_zoned_times_are_read(text: str, expected: datetime) -> None:
    assert parse_time(text, now=NOW) == expected


@pytest.mark.parametrize(
    "text",
    [
        "yesterday",
        "",
        "2026-13-01T00:00:00Z",
        "5y",
        "99999999999999d",
        "9999-12-31T23:59:59-23:59",
        "0001-01-01T00:00:00+23:59",
    ],
)
def test_what_is_no_time_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(UsageError):
        parse_time(text, now=NOW)


def test_a_time_without_a_zone_is_refused_and_the_zone_asked_for() -> None:
    with pytest.raises(UsageError, match="has no zone") as caught:
        parse_time("2026-03-08T06:59:58", now=NOW)

    assert "2026-03-08T06:59:58Z" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "seconds"), [("0s", 0), ("90s", 90), ("30m", 1800), ("2h", 7200), ("1d", 86400), ("010m", 600)]
)
def test_a_span_of_time_is_a_number_with_its_unit(text: str, seconds: int) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text", ["", "1", "d", "1.5h", "-1d", "1w", "1d ", "1d\n", "²d", "9" * 30 + "d", "9" * 5000 + "s"]
)
def test_what_is_no_span_of_time_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(UsageError):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (-5, "0s"),
        (59.9, "59s"),
        (60, "1m"),
        (3661, "1h 1m"),
        (86405, "1d"),
        (9 * 86400 + 7200, "9d 2h"),
    ],
)
def test_people_read_a_span_in_its_two_largest_units(seconds: float, text: str) -> None:
    assert span_text(timedelta(seconds=seconds)) == text


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30),
        ("1h30m", 5400),
        ("0.5s", 0.5),
        ("200ms", 0.2),
        ("2d1h", 176_400),
        ("0s", 0),
        ("1m500ms", 60.5),
    ],
)
def test_a_span_may_have_parts_and_be_short(text: str, seconds: float) -> None:
    assert span_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "30", "s", "-5s", "1h 30m", "1.5.5s", "1e3s", "9999999999s", "soon"])
def test_what_is_no_span_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no span of time"):
        span_seconds(text)
