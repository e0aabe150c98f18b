from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from mlx_platform.core.errors import UsageError
from mlx_platform.core.span import Span, make_grid, recent, time_span, time_zone

NOW = datetime(2026, 3, 9, 6, 12, 31, tzinfo=UTC)
NEW_YORK = ZoneInfo("America/New_York")


def test_hours_end_with_the_last_whole_hour_however_late_a_job_starts():
    early = recent("24h", NEW_YORK, now=NOW)
    late = recent("24h", NEW_YORK, now=NOW + timedelta(minutes=40))

    assert early == late == Span(datetime(2026, 3, 8, 6, tzinfo=UTC), datetime(2026, 3, 9, 6, tzinfo=UTC))


def test_a_day_is_a_whole_day_of_the_zone_with_23_hours_when_clocks_go_forward():
    span = recent("1d", NEW_YORK, now=NOW)

    assert span == Span(datetime(2026, 3, 8, 5, tzinfo=UTC), datetime(2026, 3, 9, 4, tzinfo=UTC))
    assert recent("1d", ZoneInfo("UTC"), now=NOW).since == datetime(2026, 3, 8, tzinfo=UTC)


@pytest.mark.parametrize("last", ["24h", "1d", "90m", "2d"])
def test_earlier_spans_touch_later_ones(last):
    spans = [recent(last, NEW_YORK, now=NOW, back=back) for back in range(4)]

    assert all(before.until == after.since for after, before in pairwise(spans))


def test_minutes_end_with_the_last_whole_minute():
    assert recent("90m", NEW_YORK, now=NOW).until == datetime(2026, 3, 9, 6, 12, tzinfo=UTC)


@pytest.mark.parametrize("last", ["", "0h", "1w", "24", "999999999d", "-1d"])
def test_what_is_no_length_is_refused(last):
    with pytest.raises(UsageError):
        recent(last, NEW_YORK, now=NOW)


def test_a_span_that_ends_before_it_starts_is_refused():
    with pytest.raises(UsageError, match="empty"):
        time_span("1h", "2h", now=NOW)


def test_a_zone_that_there_is_not_is_refused_by_name():
    with pytest.raises(UsageError, match="Mars/Base"):
        time_zone("Mars/Base")


@pytest.mark.parametrize(
    ("every", "moment", "hours"),
    [
        ("1d", "2026-03-08T12:00Z", 23),  # New York puts its clocks forward
        ("1d", "2026-11-01T12:00Z", 25),
        ("1d", "2026-03-09T12:00Z", 24),
        ("6h", "2026-11-01T06:30Z", 7),  # 01:30 for the second time
        ("6h", "2026-11-01T12:00Z", 6),
        ("7d", "2026-03-08T12:00Z", 167),
        ("1h", "2026-11-01T06:30Z", 1),
    ],
)
def test_windows_keep_to_the_calendar_of_their_zone(every, moment, hours):
    at = datetime.fromisoformat(moment)
    window = make_grid(every, NEW_YORK).at(at)
    assert window.since <= at < window.until
    assert window.until - window.since == timedelta(hours=hours)


@pytest.mark.parametrize("every", ["15m", "1h", "2h", "6h", "1d", "7d"])
@pytest.mark.parametrize(
    "zone", ["UTC", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "America/Havana"]
)
def test_windows_follow_each_other_without_gap_or_overlap(every, zone):
    grid = make_grid(every, ZoneInfo(zone))
    moment = datetime(2026, 3, 1, tzinfo=UTC)
    window = grid.at(moment)
    for _ in range(60 if every == "7d" else 400):
        following = grid.at(window.until)
        assert following.since == window.until
        assert grid.at(following.until - timedelta(microseconds=1)) == following
        window = following


def test_weeks_begin_on_monday():
    window = make_grid("7d", ZoneInfo("Europe/Berlin")).at(datetime(2026, 3, 8, 22, tzinfo=UTC))
    assert window.since.astimezone(ZoneInfo("Europe/Berlin")).strftime("%a %H:%M") == "Mon 00:00"


@pytest.mark.parametrize("every", ["0h", "5h", "36h", "nonsense"])
def test_a_length_that_does_not_fill_days_is_refused(every):
    with pytest.raises(UsageError):
        make_grid(every, ZoneInfo("UTC"))
