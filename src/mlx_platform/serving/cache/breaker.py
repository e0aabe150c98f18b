"""When to stop asking a service that does not answer, and when to try it again."""

import random
from collections.abc import Callable

_FIRST_SECONDS = 0.5
_LONGEST_SECONDS = 30.0


def _spread() -> float:
    return random.uniform(0.5, 1.0)  # noqa: S311 - it spreads load, and hides nothing


class Breaker:
    """Open while a service is taken to be down; then nobody but a probe asks it.

    Args:
        patience: so many failures in a row that might pass, such as a slow answer, open it.
        jitter: a factor between 0.5 and 1 for each pause, so that many servers do not come back as one.
    """

    def __init__(self, patience: int = 3, jitter: Callable[[], float] = _spread) -> None:
        self.open = False
        self._patience = patience
        self._jitter = jitter
        self._failures = 0
        self._pause = _FIRST_SECONDS

    def succeed(self) -> None:
        """An answer came in time."""
        self._failures = 0
        self._pause = _FIRST_SECONDS

    def fail(self, *, surely: bool) -> bool:
        """No answer came; `surely` when it is clear that none will. True when this opened the breaker."""
        self._failures += 1
        if self.open or not (surely or self._failures >= self._patience):
            return False
        self.open = True
        return True

    def close(self) -> None:
        """A probe was answered. The pauses stay long until a request is, too."""
        self.open = False
        self._failures = 0

    def next_pause(self) -> float:
        """Seconds until the next probe: twice as long each time, up to half a minute."""
        pause = self._pause
        self._pause = min(2 * pause, _LONGEST_SECONDS)
        return pause * self._jitter()
