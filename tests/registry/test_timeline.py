from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_platform.registry.timeline import effective_times, event_time

NOON = datetime(2026, 3, 8, 12, tzinfo=UTC)


def hours(*numbers: float) -> list[datetime]:
    return [NOON + timedelta(hours=number) for number in numbers]


def test_a_new_event_is_never_before_the_one_that_it_follows() -> None:
    early, late = hours(-1, 1)

    assert event_time(NOON, None) == NOON
    assert event_time(NOON, early) == NOON
    assert event_time(NOON, late) == late


def test_a_new_event_does_not_follow_a_clock_that_is_days_ahead() -> None:
    (ahead,) = hours(1000)

    assert event_time(NOON, ahead) == NOON


@pytest.mark.parametrize(
    ("dated", "effective"),
    [
        ((), ()),
        ((-3, -2, -1), (-3, -2, -1)),
        # A clock that was behind, by minutes or by half a century.
        ((-3, -5, -1), (-3, -3, -1)),
        ((-3, -500_000, -1), (-3, -3, -1)),
        # A clock that is ahead: by what two clocks may differ, or by what none can.
        ((-3, 2), (-3, 0)),
        ((-3, 600_000, -1), (-3, -1, -1)),
        ((-3, 600_000), (-3, 0)),
    ],
)
def test_the_order_of_events_is_the_sequence(dated: tuple[float, ...], effective: tuple[float, ...]) -> None:
    assert list(effective_times(hours(*dated), NOON)) == hours(*effective)


@given(st.lists(st.integers(-600_000, 600_000)))
def test_time_never_goes_backwards_and_nothing_read_lies_ahead(dated: list[int]) -> None:
    found = effective_times(hours(*dated), NOON)

    assert list(found) == sorted(found)
    assert all(time <= NOON for time in found)
