"""Evidence that somebody else is about to ask, for which alone a request may be kept waiting."""

_WEIGHT = 0.1  # of the last gap between two arrivals against all before it


class Company:
    """Who is there, and how soon others came lately.

    A request waits for company only while fewer are in flight than lately were together, and while the next
    one is due, going by how they came and by how long nobody has: once the silence is longer than what is
    left of the delay, waiting for its end would most likely be in vain.

    Args:
        delay: the longest wait, in seconds.
    """

    def __init__(self, delay: float) -> None:
        self._delay = delay
        self._crowd = 1.0
        self._gap = 0.0
        self._last = 0.0

    def came(self, now: float, in_flight: int) -> None:
        """Somebody has come; so many are in flight now."""
        self._crowd = max(self._crowd, in_flight)
        if self._delay:
            # A night without requests says nothing about the day.
            gap = min(now - self._last, 2 * self._delay)
            self._gap += (gap - self._gap) * _WEIGHT
            self._last = now

    def left(self, in_flight: int) -> None:
        """A batch has left; so many were in flight."""
        self._crowd = (self._crowd + in_flight) / 2

    def wait_until(self, oldest: float, in_flight: int) -> float:
        """Until when a batch should wait whose first request came at `oldest`; `oldest` for not at all."""
        end = oldest + self._delay
        if in_flight >= self._crowd - 0.5 or self._last + self._gap > end:
            return oldest
        return (end + self._last) / 2
