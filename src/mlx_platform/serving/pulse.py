"""The pulse of an event loop, felt from other threads: whether it still turns, and how far it lags behind."""

import asyncio
import time

_BEAT_SECONDS = 0.25
_DEAD_SECONDS = 10.0


class Pulse:
    """Beats while the loop turns that it was started on."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to beat on the running loop."""
        self._beat(asyncio.get_running_loop())

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    @property
    def lag(self) -> float:
        """Seconds by which the next beat is overdue."""
        return max(0.0, time.monotonic() - self._last - _BEAT_SECONDS)

    @property
    def alive(self) -> bool:
        """False when the loop has not turned for so long that nobody can expect an answer from it."""
        return self.lag < _DEAD_SECONDS

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        self._last = time.monotonic()
        self._timer = loop.call_later(_BEAT_SECONDS, self._beat, loop)
