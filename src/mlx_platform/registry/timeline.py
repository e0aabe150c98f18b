"""When moves happened, as far as the clocks of those who made them can be believed.

The order of moves is the sequence, never the clock: clocks of several machines disagree, and go backwards.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

SKEW = timedelta(days=1)
"""Two clocks that are further apart than this do not disagree, one of them is wrong."""


def event_time(now: datetime, before: datetime | None) -> datetime:
    """The time of a new event: now, but not before the event that it follows.

    Where the two are more than a day apart one of the clocks is wrong. Nobody can say which, so the event
    keeps its own: `effective_times` finds out later.
    """
    if before is None or before - now > SKEW:
        return now
    return max(now, before)


def effective_times(times: Sequence[datetime], now: datetime) -> tuple[datetime, ...]:
    """When each event of a sequence took effect, in an order that never goes backwards.

    Whatever can be read has happened: an event that is dated more than a day after now is taken to have
    happened just before the one that follows it. Apart from that, none took effect before the one before it,
    which puts right every clock that was behind.

    Args:
        times: as the events say, in the order of the sequence.
        now: the time of whoever asks.
    """
    dated: list[datetime] = []
    for time in reversed(times):
        following = dated[-1] if dated else now
        dated.append(following if time - now > SKEW else time)
    found: list[datetime] = []
    for time in reversed(dated):
        found.append(min(now, max(time, found[-1]) if found else time))
    return tuple(found)
