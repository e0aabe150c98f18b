"""How many rows of a kind are best run together, learnt from the runs that there are."""

from collections import deque
from collections.abc import Collection
from statistics import median

_REMEMBERED = 5  # runs of a size
_ENOUGH = 2  # of them to go by
_TOLERANCE = 1.1  # a row may take so many times as long as in the best size
_FORGOTTEN = 200  # runs after which a size that was left alone is tried again


class RunSizes:
    """What a row takes in runs of 1, 2 to 3, 4 to 7 rows and so on, and from where on more rows cost more.

    Beyond what fits into the caches of a processor a row in a large run takes longer than in a small one, and
    how much fits depends on how long the rows are, which no measurement at the start can know.

    Attributes:
        most: rows up to which runs may grow for now; None while nothing speaks against any size.
    """

    __slots__ = ("_age", "_last", "_paces", "_room", "most")

    def __init__(self) -> None:
        self.most: int | None = None
        self._room: int | None = None
        self._paces: list[deque[float]] = []
        self._last: list[int] = []
        self._age = 0

    def begin(self, rows: int) -> None:
        """Begin with runs of at most so many rows, and let them double as long as none is worse."""
        self.most = self._room = rows

    def learn(self, rows: int, seconds: float) -> None:
        """Take a run into account."""
        size = rows.bit_length() - 1
        while len(self._paces) <= size:
            self._paces.append(deque(maxlen=_REMEMBERED))
            self._last.append(self._age)
        self._age += 1
        self._last[size] = self._age
        self._paces[size].append(seconds / rows)
        for other, last in enumerate(self._last):
            if self._age - last > _FORGOTTEN:
                self._paces[other].clear()
        if self._room is not None and rows > self._room // 2 and len(self._paces[size]) >= _ENOUGH:
            self._room *= 2
        bounds = [bound for bound in (self._knee(), self._room) if bound is not None]
        self.most = min(bounds, default=None)

    def _knee(self) -> int | None:
        """The rows beyond which a row takes longer, if that was seen."""
        known = {size: _pace(paces) for size, paces in enumerate(self._paces) if len(paces) >= _ENOUGH}
        if len(known) < 2:
            return None
        best = min(known, key=lambda size: known[size])
        too_large = [size for size in known if size > best and known[size] > _TOLERANCE * known[best]]
        return (1 << min(too_large)) - 1 if too_large else None


def _pace(paces: Collection[float]) -> float:
    """What a row takes. Of few runs the best counts: the first is slow, and others use the machine."""
    return median(paces) if len(paces) == _REMEMBERED else min(paces)
