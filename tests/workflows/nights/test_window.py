from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from mlx_platform.workflows.nights.window import missed_nights, night_before

NOW = datetime(2026, 3, 9, 6, 12, tzinfo=UTC)
BERLIN = ZoneInfo("Europe/Berlin")


def keys(kept: list[datetime], *, last: str = "1d", most: int = 5, now: datetime = NOW) -> list[str]:
    return [night.key for night in missed_nights(last, BERLIN, most, kept, now=now)]


def ends(*backs: int, last: str = "1d") -> list[datetime]:
    return [night_before(last, BERLIN, now=NOW, back=back).until for back in backs]


def test_the_names_of_windows_are_their_beginnings():
    assert night_before("1d", BERLIN, now=NOW).key == "2026-03-08"
    assert night_before("24h", BERLIN, now=NOW).key == "2026-03-08T0600Z"


def test_nothing_was_missed_before_the_first_run():
    assert keys([]) == []
    assert keys(ends(0)) == []


def test_missed_are_the_windows_since_the_last_run_and_holes_between_runs():
    assert keys(ends(3)) == ["2026-03-06", "2026-03-07"]
    assert keys(ends(4, 2)) == ["2026-03-05", "2026-03-07"]


def test_no_more_are_made_up_for_than_was_asked():
    assert keys(ends(30), most=2) == ["2026-03-06", "2026-03-07"]


def test_a_job_that_runs_later_than_usual_repeats_no_window():
    assert keys(ends(1, last="24h"), last="24h", now=NOW + timedelta(hours=7)) == []
    assert keys(ends(2, last="24h"), last="24h", now=NOW + timedelta(hours=7)) == ["2026-03-07T1300Z"]
