from dataclasses import replace
from datetime import timedelta

import pytest
from rollout_stage import NOON, make_rollout

from mlx_platform.serving.rollout.steady import RolloutClock, uptime


class Times:
    """A wall clock, and one that never jumps."""

    def __init__(self):
        self.wall = NOON
        self.steady = 500.0

    def passes(self, seconds):
        self.wall += timedelta(seconds=seconds)
        self.steady += seconds


@pytest.fixture
def times():
    return Times()


def _clock(times):
    return RolloutClock(lambda: times.wall, lambda: times.steady)


def _begun_at(moment, window=1):
    return replace(make_rollout(), window=window, started_at=NOON, step_since=moment)


@pytest.mark.parametrize("wrong", [-3600, 3600])
def test_whoever_saw_a_window_begin_needs_no_time_of_day(times, wrong):
    clock = _clock(times)
    clock.see(None)
    times.passes(0.5)
    times.wall += timedelta(seconds=wrong)  # against the clock of whoever writes
    rollout = _begun_at(NOON)
    clock.see(rollout)
    assert rollout.elapsed_s(clock()) <= 0.5
    times.passes(10)
    clock.see(rollout)
    assert 10 <= rollout.elapsed_s(clock()) <= 10.5


@pytest.mark.parametrize("jump", [-3600, 3600])
def test_a_time_of_day_that_jumps_changes_nothing(times, jump):
    clock, rollout = _clock(times), _begun_at(NOON)
    clock.see(rollout)
    times.passes(7)
    times.wall += timedelta(seconds=jump)
    clock.see(rollout)
    assert rollout.elapsed_s(clock()) == 7
    later = _begun_at(clock(), window=2)
    clock.see(later)
    assert later.elapsed_s(clock()) == 0
    times.passes(3)
    assert later.elapsed_s(clock()) == 3
    assert later.progress_s(clock()) == 10


def test_whoever_comes_later_goes_by_the_time_of_day(times):
    times.passes(40)
    clock, rollout = _clock(times), _begun_at(NOON)
    clock.see(rollout)
    times.passes(2)
    assert rollout.elapsed_s(clock()) == 42


def test_a_window_that_begins_later_than_now_begins_when_it_is_seen(times):
    clock, rollout = _clock(times), _begun_at(NOON + timedelta(hours=1))
    clock.see(rollout)
    times.passes(5)
    assert rollout.elapsed_s(clock()) == 5


def test_without_a_rollout_it_is_the_time_of_day(times):
    clock = _clock(times)
    clock.see(_begun_at(NOON - timedelta(hours=1)))
    clock.see(None)
    times.wall += timedelta(hours=2)
    assert clock() == times.wall


def test_time_goes_on():
    before = uptime()
    assert uptime() >= before
