"""What time it is in a rollout, by clocks of servers that may all be wrong."""

import time
from collections.abc import Callable
from datetime import datetime, timedelta

from mlx_platform.core.clock import Clock, system_clock
from mlx_platform.serving.rollout.state import Rollout


def uptime() -> float:
    """Seconds on a clock that never jumps, and goes on while the machine sleeps where the system has one."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


class RolloutClock:
    """The moment at which the present window began, and from then on as much more as has gone by here.

    How long a window has lasted is asked of the time of day only once, when it is seen for the first time. It
    cannot have begun before the last moment at which it was not there yet, nor after the one at which it was:
    so whoever has watched since knows it whatever the time of day says, then or later. Whoever has not, such
    as a process that has just started, has nothing else to go by.

    Args:
        clock: the time of day.
        monotonic: seconds on a clock that never jumps.
    """

    def __init__(self, clock: Clock = system_clock, monotonic: Callable[[], float] = uptime) -> None:
        self._clock = clock
        self._monotonic = monotonic
        self._window: tuple[str, int] | None = None
        self._start = clock()
        self._began = 0.0
        self._seen: float | None = None

    def see(self, rollout: Rollout | None) -> None:
        """Note which rollout goes on now, if any does."""
        moment = self._monotonic()
        window = (rollout.id, rollout.window) if rollout is not None else None
        if rollout is not None and window != self._window:
            lasted = rollout.elapsed_s(self._clock())
            if self._seen is not None:
                lasted = min(lasted, moment - self._seen)
            self._start, self._began = rollout.step_since, moment - lasted
        self._window, self._seen = window, moment

    def __call__(self) -> datetime:
        """Now, in the rollout that was seen last; the time of day while there is none."""
        if self._window is None:
            return self._clock()
        return self._start + timedelta(seconds=self._monotonic() - self._began)
